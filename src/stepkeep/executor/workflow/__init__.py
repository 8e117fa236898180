"""Workflow files: a YAML file with steps becomes a plan that the runner runs, saves and resumes."""
