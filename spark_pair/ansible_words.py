"""What Ansible said about a machine that it could not look at. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# ssh lists the ways in that it has tried as "(publickey,password)": that is no question of sudo's.
_NO_ROOT = re.compile(
    r"\bsudo|privilege escalation|is not allowed to execute|(?<![,(])\bpassword\b", re.IGNORECASE
)


def lacks_root(words: str) -> bool:
    """Whether a look failed because the account does not become root."""
    return bool(_NO_ROOT.search(words))


def why_not(looked: Mapping[str, Any]) -> str:
    """The words in the result of a look that came to nothing; sudo's own go first."""
    said = [str(looked.get(name) or "").strip() for name in ("msg", "module_stderr")]
    return next((words for words in said if lacks_root(words)), said[0]) or "no answer"


def first_line(words: str) -> str:
    """What stands first, short enough for a sentence."""
    return (words.strip().splitlines() or ["no answer"])[0][:160]
