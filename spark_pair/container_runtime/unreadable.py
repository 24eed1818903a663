"""What an error of the file system means to the operator."""

from __future__ import annotations

import errno

_NEXT = {
    errno.EACCES: "not even root may. A home on NFS keeps root out (root_squash): use a local one",
    errno.EROFS: "that file system is mounted read-only: see 'dmesg' for the reason",
    errno.ENOSPC: "that disk is full: free some space there ('df -h')",
    errno.EDQUOT: "the quota there is used up: free some space",
    errno.ESTALE: "the NFS server has lost it: mount that file system again",
}
_NEXT[errno.EPERM] = _NEXT[errno.EACCES]


def sentence(host: str, error: OSError) -> str:
    """What could not be used on which host, why, and what to do next."""
    what = error.filename or "a file"
    why = error.strerror or str(error)
    advice = _NEXT.get(error.errno or 0, "look at it there, and at 'dmesg'")
    return f"{what} on {host} cannot be used ({why}): {advice}. Then run again with --tags runtime."
