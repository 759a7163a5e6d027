"""`python -m amp`: the command `amp` where it is not installed; nothing else."""

from __future__ import annotations

import sys

from amp.cli import main

if __name__ == "__main__":
    sys.exit(main())
