#!/usr/bin/env python3
"""The simulated pair's command: see `pair.py --help`."""

import sys
from pathlib import Path

# Run as a file, from any directory: the package's parent has to be findable.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulated_pair.cli import main

if __name__ == "__main__":
    sys.exit(main())
