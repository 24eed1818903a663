"""Who of a pair is missing from a run, said in one sentence each. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .description import Role


def absences(
    pair: Mapping[Role, str],
    *,
    in_limit: Collection[str],
    still_in: Collection[str],
    pings: Mapping[str, Mapping[str, Any] | None] | None,
    limit: str,
) -> dict[str, str]:
    """Host -> why it does not take part, for every host of the pair that does not.

    `in_limit` are the hosts that the play was to run on, `still_in` those that have not failed,
    `pings` the results of a ping (a host without one was not asked; None: nobody was), `limit`
    the text of `-l`.
    """
    found: dict[str, str] = {}
    for role, host in pair.items():
        known_as = f"{host} (the {role} of this pair)"
        ping = pings.get(host) if pings is not None else {"ping": "pong"}
        if host not in in_limit:
            by = f"by -l {limit}" if limit else "of this run"
            both = ",".join(pair.values())
            found[host] = f"{known_as} is left out {by}: run again with -l '{both}' or without -l"
        elif host not in still_in:
            found[host] = f"{known_as} failed earlier in this run: see its message above"
        elif ping is not None and ping.get("unreachable"):
            found[host] = (
                f"{known_as} cannot be reached: {_words(ping)}. "
                f"Try 'ansible {host} -m ansible.builtin.ping', then run again"
            )
        elif ping is None or ping.get("ping") != "pong":
            words = _words(ping or {})
            found[host] = (
                f"{known_as} can be reached, but Python does not run there: {words}. "
                f"Install it with 'ansible {host} -b -m ansible.builtin.raw -a \"apt-get install "
                "-y python3\"', then run again"
            )
    return found


def refusal(sentences: Sequence[str], *, untouched: bool) -> str:
    """The message of a refused run; `untouched` when this stage has not begun its work."""
    said = " ".join(words if words.endswith((".", "?")) else f"{words}." for words in sentences)
    return f"{said} This stage has changed nothing." if untouched else said


def _words(ping: Mapping[str, Any]) -> str:
    """The cause in a ping's result, on one line, without what Ansible says around it."""
    text = str(ping.get("module_stderr") or ping.get("msg") or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = (
        re.sub(r"^.*(?:can be reached over ssh|host via ssh): *", "", lines[-1], flags=re.I)
        if lines
        else ""
    )
    return last.rstrip(".")[:200] or "no reason was given"
