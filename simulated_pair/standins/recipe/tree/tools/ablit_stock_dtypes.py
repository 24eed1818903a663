#!/usr/bin/env python3
"""Gives the tensors that an overlay brought the types that the checkpoint has for them.

usage: ablit_stock_dtypes.py CHECKPOINT GRAFTED      in the engine's image, after the graft

Stand-in: the real tool's arguments are not known, and it converts more than float32 to float16.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, "/opt/engine")

from tensorfold_standin.rank_cache import RankCacheError
from tensorfold_standin.shards import give_stock_types


def main() -> int:
    """Rewrite what needs it; 0 or 1."""
    source, target = (Path(word) for word in sys.argv[1:3])
    try:
        print(f"DONE {target} rewritten {give_stock_types(source, target)}")
    except (RankCacheError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
