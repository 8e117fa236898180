"""Measures Stepkeep beside a floor and beside peers, in one run. Start with `python -m benchmarks --help`."""
