"""Whether the command that builds an image names a stage that its script knows.

What a recipe calls its image stage is not known for sure. A script that takes no notice of the word
would run everything it has: download, graft and cut, beside whatever serves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_STAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_ARGUMENTS = re.compile(r"\$[1@*]|\$\{[1@*]|\bsys\.argv\b|\bargparse\b")
_COMMENT = re.compile(r"(?m)(^|(?<=\s))#.*$")
_PATTERN = r"[\w.*?\"'-]+"
"""One alternative of a label in a shell's `case`."""
_MOST_BYTES = 1 << 20


def problem(checkout: Path, command: Sequence[str]) -> str:
    """Why a command must not be run, in a sentence; "" when nothing speaks against it.

    Only a command that begins with a script of the checkout and goes on with a stage's word is
    judged. Any other, such as [sh, -c, …], is what the operator says that it is.
    """
    if len(command) < 2 or not _STAGE.fullmatch(command[1]):
        return ""
    script = checkout / command[0]
    if "/" not in command[0] or not script.resolve().is_relative_to(checkout.resolve()):
        return ""
    try:
        with script.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""  # it cannot be run either, and that says why
    if knows(text, command[1]):
        return ""
    return (
        f"{command[0]} does not seem to know a stage {command[1]!r}, and might run everything that "
        "it has, downloads and graft included. Name the command that builds the image alone in "
        "engine_image_build_command (one that begins with sh -c is run as it is), or an image of "
        "your own in tensorfold_service_image"
    )


def knows(text: str, stage: str) -> bool:
    """Whether a script looks at its arguments, and compares something with that word."""
    code = _COMMENT.sub("", text)
    word = rf"(?:\"{re.escape(stage)}\"|'{re.escape(stage)}'|(?<![\w-]){re.escape(stage)}(?![\w-]))"
    begins = r"(?:^|\bcase\s[^\n]*\sin\s|;;)"
    label = rf"(?m){begins}\s*\(?\s*(?:{_PATTERN}\s*\|\s*)*{word}\s*(?:\|\s*{_PATTERN}\s*)*\)"
    # One "=" alone is a comparison only where a shell tests something.
    compared = rf"(?:==\s*|(?:\[|\btest)\s[^\n]*\s=~?\s+){word}"
    return bool(_ARGUMENTS.search(code)) and bool(
        re.search(label, code) or re.search(compared, code)
    )
