"""Makes the stand-in of the wide-row kit: two files for each width from 17 to 48, and a list.

usage: make_kit.py TARGET

TARGET is a folder that is made; the same files always come of it, so that an inventory can declare
the sha256 of MANIFEST (printed). There is nothing in them that a GPU could run.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROWS = range(17, 49)
PARTS = ("linear", "experts")
MANIFEST = "MANIFEST"


def content(name: str) -> bytes:
    """Some hundred bytes that follow from the name."""
    seed = hashlib.sha256(name.encode()).digest()
    blocks = [hashlib.sha256(seed + bytes([index])).digest() for index in range(8 + seed[0] % 8)]
    return b"\x7fELF" + b"".join(blocks)


def make(target: Path) -> str:
    """Write the kit; the sha256 of its manifest."""
    names = sorted(f"wide/rows-{rows}-{part}.cubin" for rows in ROWS for part in PARTS)
    (target / "wide").mkdir(parents=True, exist_ok=True)
    for name in names:
        (target / name).write_bytes(content(name))
    lines = [f"{hashlib.sha256(content(name)).hexdigest()}  {name}\n" for name in names]
    (target / MANIFEST).write_text("".join(lines))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
