"""Looking back: how a person names a checkpoint."""
