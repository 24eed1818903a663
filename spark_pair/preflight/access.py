"""Checks of how one gets onto the machines and from one to the other."""

from __future__ import annotations

from .checks import Check, HostCheck, Outcome, Sight, fail, ok, unknown, warn

MINIMUM_PYTHON = (3, 11)


def _python(sight: Sight) -> Outcome:
    version = ".".join(map(str, sight["python"]))
    if tuple(sight["python"]) >= MINIMUM_PYTHON:
        return ok(version)
    return fail(version, f"/usr/bin/python3 is {version}: the tool needs 3.11 or newer")


def _sudo(sight: Sight) -> Outcome:
    if sight["euid"] == 0:
        return ok("yes")
    return fail("no", "the play runs without root: the login account needs sudo rights")


def _account(sight: Sight) -> Outcome:
    uid = sight["account"]["uid"]
    if uid is None:
        return fail("none", f"there is no account {sight.user!r}: correct spark_user")
    if uid == 0:
        return fail(
            "root",
            "spark_user is root: the servers run as an ordinary account with ssh keys of its own",
        )
    return ok(sight.user)


def _home(sight: Sight) -> Outcome:
    account = sight["account"]
    if account["uid"] is None:
        return unknown("unknown", "there is no account whose home could be looked at")
    if not account["is_home"]:
        return fail(
            sight.home,
            f"spark_home is {sight.home}, but the home of {sight.user} is {account['home']}: "
            "correct spark_home",
        )
    if not account["home_exists"]:
        return fail(sight.home, f"{sight.home} does not exist")
    return ok(sight.home)


def _ssh_mesh(sight: Sight) -> Outcome:
    ways = sight["ssh"]
    if not ways:
        return unknown("unknown", "no address of the peer is known")
    closed = {address: words for address, words in ways.items() if words}
    words = f"{len(ways) - len(closed)} of {len(ways)} ways"
    if not closed:
        return ok(words)
    address, said = next(iter(closed.items()))
    where = "at any address" if len(closed) == len(ways) else f"at {', '.join(closed)}"
    return warn(
        words,
        f"{sight.user} does not get to the peer {where} ({address}: {said.rstrip('.')})",
        "the service stage makes the keys, and refuses if a way stays closed",
    )


def _sudo_line(sight: Sight) -> Outcome:
    if sight["sudo_line"]:
        return ok("yes")
    return warn(
        "not yet",
        f"{sight.user} may not run 'spark-pair node' as root yet, as the peer's switch does",
        "the service stage writes the line",
    )


CHECKS: tuple[Check, ...] = (
    Check(
        "reachable",
        "reachable over ssh",
        "The machine takes part in the run and answers over ssh with its Python.",
    ),
    HostCheck(
        "python",
        "Python 3.11 or newer",
        "The machine's own Python can run the tool.",
        needs=("python",),
        judge=_python,
    ),
    HostCheck(
        "sudo",
        "root through sudo",
        "The login account becomes root, with the password of `--ask-become-pass` if it takes one.",
        needs=("euid",),
        judge=_sudo,
    ),
    HostCheck(
        "account",
        "account of the servers",
        "`spark_user` exists and is an ordinary account.",
        needs=("account",),
        judge=_account,
    ),
    HostCheck(
        "home",
        "its home directory",
        "`spark_home` is that account's home and exists.",
        needs=("account",),
        judge=_home,
    ),
    Check(
        "variables",
        "variables",
        "The variables make a valid pair; no name is misspelt, none unknown in "
        "`preflight_accept`; the declared clients (`tensorfold_service_clients`) fit into the pool "
        "at once.",
    ),
)

MESH: tuple[Check, ...] = (
    HostCheck(
        "ssh_mesh",
        "ssh to the peer",
        "`spark_user` reaches the peer without a password, at its management address and on "
        "each rail.",
        needs=("ssh",),
        judge=_ssh_mesh,
    ),
    HostCheck(
        "sudo_line",
        "sudo for the peer's switch",
        "The account that the peer's switch comes in with may run the tool's node verbs as root.",
        needs=("sudo_line",),
        judge=_sudo_line,
    ),
)
