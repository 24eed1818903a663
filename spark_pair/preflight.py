"""What a host must bring along before anything is done to it: looked at, and shown as a table.

`look` runs on the host (standard library only, reads only); `table` and `problems` on the
controller. Pure but for `look`.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from typing import Any

from .description import ROLES, Role

CHECKS = {
    "reachable": "reachable over ssh",
    "python": "Python 3.11 or newer",
    "sudo": "root through sudo",
    "account": "account of the servers",
    "home": "its home directory",
}
"""Key -> what is shown; in the order in which one needs the other."""

MINIMUM_PYTHON = (3, 11)
Row = dict[str, str]


def look(user: str, home: str) -> dict[str, Row]:
    """Look at this host; each check is {"state": "ok"|"failed", "words": …}."""
    version = ".".join(map(str, sys.version_info[:2]))
    checks = {
        "reachable": _ok("yes"),
        "python": _ok(version)
        if sys.version_info[:2] >= MINIMUM_PYTHON
        else _failed(f"/usr/bin/python3 is {version}: the tool needs 3.11 or newer"),
        "sudo": _ok("yes")
        if os.geteuid() == 0
        else _failed("the play runs without root: the login account needs sudo rights"),
    }
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        checks["account"] = _failed(f"there is no account {user!r}: correct spark_user")
        return checks
    checks["account"] = _ok(user)
    if account.pw_uid == 0:
        checks["account"] = _failed(
            "spark_user is root: the servers run as an ordinary account with ssh keys of its own"
        )
    if os.path.realpath(account.pw_dir) != os.path.realpath(home):
        checks["home"] = _failed(
            f"spark_home is {home}, but the home of {user} is {account.pw_dir}: correct spark_home"
        )
    elif not os.path.isdir(home):  # noqa: PTH112 - one look, no Path needed on the host
        checks["home"] = _failed(f"{home} does not exist")
    else:
        checks["home"] = _ok(home)
    return checks


def judged(
    absence: str | None, asked: Mapping[str, Any] | None, looked: Mapping[str, Row] | None
) -> dict[str, Row]:
    """Checks of one host from what could be learned about it.

    `absence` is why it does not take part, `asked` the raw result of the module (for its failure),
    `looked` the module's checks.
    """
    if absence:
        return {"reachable": _failed(absence)}
    if looked:
        return dict(looked)
    words = str((asked or {}).get("msg") or "no answer").strip().splitlines()
    return {
        "reachable": _ok("yes"),
        "sudo": _failed(
            f"sudo does not work there ({words[0][:120]}): give the login account passwordless "
            "sudo, or run with --ask-become-pass"
        ),
    }


def table(
    pair: Mapping[Role, str], checks: Mapping[str, Mapping[str, Row]], inputs: list[str]
) -> str:
    """One table for a pair: a row a check, a column a host; what failed is explained below."""
    header = ["preflight", *(f"{pair[role]} ({role})" for role in ROLES if role in pair)]
    rows = [header]
    for key, title in CHECKS.items():
        cells = [_cell(checks[pair[role]].get(key)) for role in ROLES if role in pair]
        rows.append([title, *cells])
    rows.append(["variables", "FAILED" if inputs else "ok"])
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(header))]
    lines = [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *(f"  ! {words}" for words in problems(checks, inputs))])


def problems(checks: Mapping[str, Mapping[str, Row]], inputs: list[str]) -> list[str]:
    """Everything that failed, one sentence each."""
    found = [
        row["words"] if key == "reachable" else f"{host}: {row['words']}"
        for host, rows in checks.items()
        for key, row in rows.items()
        if row["state"] == "failed"
    ]
    return list(dict.fromkeys([*found, *inputs]))


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return row["words"] if row["state"] == "ok" else "FAILED"


def _ok(words: str) -> Row:
    return {"state": "ok", "words": words}


def _failed(words: str) -> Row:
    return {"state": "failed", "words": words}
