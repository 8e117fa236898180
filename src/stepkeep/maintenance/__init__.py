"""Looking after a store: first a plan or a report, then the change."""
