"""From the measurements of both hosts to findings, one a check. Pure.

One host may be missing: what can be said of the other is said, and what needs both is *unknown*.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import ansible_words
from ..description import ROLES, PairDescription, Role
from ..findings import Finding, Grade, worst
from ..rails import bandwidth
from ..rails import judge as rails_judge
from . import access, load, machine, software
from .checks import Check, HostCheck, Outcome, PairCheck, Sight, fail, ok, unknown
from .rails import RAILS

CATALOGUE: tuple[Check, ...] = (
    *access.CHECKS,
    *machine.MACHINE,
    *load.LOAD,
    *RAILS,
    *access.MESH,
    *software.SOFTWARE,
)
"""Every check there is, in the order of the table."""

BY_ID = {check.id: check for check in CATALOGUE}
TITLES = {check.id: check.title for check in CATALOGUE}
NETWORK_STAGE = (*rails_judge.SSH_TITLES, *bandwidth.TITLES)
"""Checks that the network stage adds to those of the rails; they are accepted by the same list."""

_RAIL_IDS = frozenset(check.id for check in RAILS)


@dataclass(frozen=True)
class Seen:
    """What could be learned about one host.

    `absence` is why it does not take part, `failure` the words of a look that came to nothing.
    Without either, `measured` and `unread` are those of `collect.measure`.
    """

    user: str = ""
    home: str = ""
    absence: str = ""
    failure: str = ""
    measured: Mapping[str, Any] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """What the variables ask for. `problems` are sentences about what is wrong with them, `doubts`
    about what is allowed and will hardly work."""

    description: PairDescription | None = None
    problems: Sequence[str] = ()
    rails: Mapping[Role, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    mtu: int | None = None
    link_speed: int = 200_000
    allow_management_rail: bool = False
    doubts: Sequence[str] = ()


def findings(pair: Mapping[Role, str], seen: Mapping[Role, Seen], wanted: Wanted) -> list[Finding]:
    """One finding for each check of the catalogue, in its order."""
    roles = [role for role in ROLES if role in pair]
    sights = {
        role: Sight(
            pair[role],
            role,
            seen[role].user,
            seen[role].home,
            seen[role].measured or {},
            wanted.description,
        )
        for role in roles
        if seen[role].measured is not None
    }
    rails = {found.id: found for found in _rails(pair, seen, sights, wanted)}
    found: list[Finding] = []
    for check in CATALOGUE:
        if check.id in _RAIL_IDS:
            found.append(rails[check.id])
        elif check.id == "variables":
            found.append(_variables(check, pair, roles, wanted))
        elif isinstance(check, HostCheck | PairCheck):
            found.append(_judged(check, pair, roles, seen, sights))
        else:
            reached = {role: _reached(pair[role], seen[role]) for role in roles}
            found.append(_host_finding(check, pair, reached))
    return found


def unknown_names(accepted: Iterable[str]) -> list[str]:
    """A sentence for each accepted id that is no check's, with the nearest one that is."""
    said = []
    known = [*BY_ID, *NETWORK_STAGE]
    for name in accepted:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
            hint = f": did you mean {near[0]}?" if near else ""
            said.append(f"preflight_accept names {name!r}, which is no check{hint}")
    return said


def _reached(host: str, seen: Seen) -> Outcome:
    if seen.absence:
        return fail("FAILED", seen.absence)
    if seen.failure and not ansible_words.lacks_root(seen.failure):
        said = ansible_words.first_line(seen.failure)
        return fail("FAILED", f"{host} answers, but could not be looked at: {said}")
    return ok("yes")


def _variables(
    check: Check, pair: Mapping[Role, str], roles: Sequence[Role], wanted: Wanted
) -> Finding:
    grade, words = Grade.OK, "ok"
    if wanted.problems:
        grade, words = Grade.FAIL, "FAILED"
    elif wanted.doubts:
        grade, words = Grade.WARN, "doubtful"
    hint = "; ".join(wanted.problems or wanted.doubts)
    return Finding(check.id, grade, {pair[role]: words for role in roles}, hint, check.guards)


def _judged(
    check: HostCheck | PairCheck,
    pair: Mapping[Role, str],
    roles: Sequence[Role],
    seen: Mapping[Role, Seen],
    sights: Mapping[Role, Sight],
) -> Finding:
    if isinstance(check, PairCheck):
        return _pair_finding(check, pair, seen, sights)
    outcomes = {
        role: _host_outcome(check, sights[role], seen[role])
        for role in roles
        if role in check.roles and role in sights
    }
    if check.id == "sudo":
        outcomes |= {
            role: fail("FAILED", _no_sudo(seen[role].failure))
            for role in roles
            if ansible_words.lacks_root(seen[role].failure) and not seen[role].absence
        }
    return _host_finding(check, pair, outcomes)


def _no_sudo(words: str) -> str:
    return (
        f"sudo does not work there ({ansible_words.first_line(words)}): give the login account "
        "passwordless sudo, or run with --ask-become-pass"
    )


def _host_outcome(check: HostCheck, sight: Sight, seen: Seen) -> Outcome:
    if why := _missing(check.needs, seen):
        return unknown("unknown", why)
    return check.judge(_only(sight, (*check.needs, *check.uses)))


def _only(sight: Sight, names: Sequence[str]) -> Sight:
    """The sight without measurements that a check did not name."""
    shown = {name: sight.measured.get(name) for name in names}
    return Sight(sight.host, sight.role, sight.user, sight.home, shown, sight.description)


def _missing(needs: Iterable[str], seen: Seen) -> str:
    """Why one of the needed measurements is not there; empty when all are."""
    for name in needs:
        if (seen.measured or {}).get(name) is None:
            return str(seen.unread.get(name) or f"{name} was not measured")
    return ""


def _host_finding(
    check: Check, pair: Mapping[Role, str], outcomes: Mapping[Role, Outcome]
) -> Finding:
    """One finding of what was said about each host; the worst counts, and each bad one is named."""
    if not outcomes:
        return Finding(check.id, Grade.UNKNOWN, {}, "no machine could be looked at", check.guards)
    grade = worst(Finding("", one.grade, {}) for one in outcomes.values())
    # A host that is merely unknown must not stand in the sentence about one that failed.
    worst_ones = {role: one for role, one in outcomes.items() if one.grade is grade}
    return Finding(
        check.id,
        grade,
        {pair[role]: one.words for role, one in outcomes.items()},
        _hint(check, pair, worst_ones),
        check.guards,
        {
            "verdicts": {pair[role]: str(one.grade) for role, one in outcomes.items()},
            "hints": {pair[role]: one.hint for role, one in outcomes.items() if one.hint},
        },
    )


def _hint(check: Check, pair: Mapping[Role, str], outcomes: Mapping[Role, Outcome]) -> str:
    """What is wrong on which host; equal words and equal remedies are said once."""
    groups: dict[str, dict[str, list[str]]] = {}
    for role, one in outcomes.items():
        if one.hint:
            groups.setdefault(one.remedy, {}).setdefault(one.hint, []).append(pair[role])
    sentences = []
    for remedy, hints in groups.items():
        said = "; ".join(
            # What keeps a machine out of the run names it already.
            hint if check.id == "reachable" else f"{' and '.join(hosts)}: {hint}"
            for hint, hosts in hints.items()
        )
        sentences.append(f"{said}: {remedy}" if remedy else said)
    return ". ".join(sentences)


def _pair_finding(
    check: PairCheck,
    pair: Mapping[Role, str],
    seen: Mapping[Role, Seen],
    sights: Mapping[Role, Sight],
) -> Finding:
    words: dict[str, str] = {}
    reasons: dict[str, list[str]] = {}
    whole: dict[Role, Sight] = {}
    for role, host in pair.items():
        if role not in sights:
            reasons.setdefault("not looked at", []).append(host)
        elif why := _missing(check.needs, seen[role]):
            reasons.setdefault(why, []).append(host)
            words[host] = "unknown"
        else:
            whole[role] = _only(sights[role], check.needs)
            words[host] = check.words(whole[role])
    if len(whole) < len(ROLES):
        said = "; ".join(f"{' and '.join(hosts)}: {why}" for why, hosts in reasons.items())
        hint = said or "there is no pair to compare"
        return Finding(check.id, Grade.UNKNOWN, words, hint, check.guards)
    grade, hint = check.compare(whole["head"], whole["worker"])
    return Finding(check.id, grade, words, hint, check.guards)


def _rails(
    pair: Mapping[Role, str],
    seen: Mapping[Role, Seen],
    sights: Mapping[Role, Sight],
    wanted: Wanted,
) -> list[Finding]:
    return rails_judge.findings(
        pair,
        wanted.rails,
        {role: sight.measured.get("rails") for role, sight in sights.items()},
        mtu=wanted.mtu,
        link_speed=wanted.link_speed,
        allow_management_rail=wanted.allow_management_rail,
        before_setup=True,
        unread={role: why for role in sights if (why := _missing(("rails",), seen[role]))},
    )
