"""A debugging session: hypotheses, beliefs, gaps, experiments, verifications, and when to save them."""
