"""Running work and resuming it: plans, leases, scripts, workflow files."""
