"""`python -m stepkeep`."""

from __future__ import annotations

import sys

from stepkeep.cli import main

if __name__ == "__main__":
    sys.exit(main())
