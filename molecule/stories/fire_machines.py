"""The machines are struck: power, cables, ssh."""

from .fire import NO_SWITCH, Case
from .fire_strikes import (
    both,
    fault,
    kill_ssh_master,
    link,
    power,
    rail_down,
    script,
    start_sshd,
    stop_sshd,
)
from .machines import HEAD, HOSTS, WORKER

_BROUGHT_BACK = "hikari serves, verified by a completion"
_NEW_ONE = "deepseek serves, verified by a completion"
_BOOT = "a machine boots"
_RAIL = "enp1s0f0np0"
_OTHER_RAIL = "enP2p1s0f0np0"
_MANAGEMENT = "enP7s7"
_IMPATIENT = {"policy.resume_wait": 6}
_ROLE = {HEAD: "the head", WORKER: "the worker"}


def _restarted(host: str, before: str, phase: str, code: int | None) -> Case:
    """One of the eight: which machine restarts, who served, in the middle of a switch or not."""
    return Case(
        phase,
        f"{_ROLE[host]} is restarted",
        power("cut-power", host),
        "hikari",
        code,
        before=before,
        then=power("boot", host),
        asker_ends=host != HEAD,
        booted=(host,),
        bound=90,
        why=_BOOT,
    )


def _booted_in(phase: str, host: str, code: int, before: str = "hikari", **more: object) -> Case:
    """A machine restarts in some other phase of a switch."""
    return Case(
        phase,
        f"{_ROLE[host]} is restarted",
        power("cut-power", host),
        "hikari",
        code,
        before=before,
        then=power("boot", host),
        booted=(host,),
        bound=90,
        why=_BOOT,
        **more,  # type: ignore[arg-type]
    )


def _both_off(before: str, phase: str, code: int | None) -> Case:
    return Case(
        phase,
        "both machines lose their power",
        power("cut-power", *HOSTS),
        "hikari",
        code,
        before=before,
        # As slow as a real one: it is not there yet when the tool looks after the boot.
        prepare=fault(WORKER, "hikari", mode="slow_start", seconds=8),
        then=power("boot", *HOSTS),
        asker_ends=False,
        booted=HOSTS,
        bound=90,
        why=_BOOT,
    )


CASES = [
    *(
        _restarted(host, before, phase, code)
        for host in HOSTS
        for before, phase, code in (
            ("hikari", "start", 20),
            ("deepseek", "start", 20),
            # A Hikari whose head starts with its machine is joined again by its other half.
            ("hikari", NO_SWITCH, 20 if host == HEAD else None),
            ("deepseek", NO_SWITCH, 20),
        )
    ),
    # The old server has died with it: there is nothing to wait for, and the switch goes on.
    # Until it is back it may be serving out of sight, so a request keeps the drain waiting.
    _booted_in(
        "drain",
        WORKER,
        0,
        "deepseek",
        prepare=fault(HEAD, "engine", mode="zombie"),
        settings={"policy.drain_deadline": 300},
    ),
    _booted_in("stop", WORKER, 20),
    _booted_in("verify", WORKER, 20),
    _booted_in("verify", HEAD, 20, asker_ends=False),
    # Proven a moment before, so the switch ends well; the boot then gives the pair to the fallback.
    _booted_in("restore", WORKER, 20, asker_ends=False),
    _booted_in("recover", WORKER, 20, prepare=fault(HEAD, "recipe", start="exit0_without_serving")),
    _both_off("hikari", NO_SWITCH, None),
    _both_off("deepseek", NO_SWITCH, 20),
    _both_off("hikari", "start", 20),
    _both_off("deepseek", "stop", 20),
    Case(
        "start",
        "the worker loses its power and stays off",
        power("cut-power", WORKER),
        "",
        30,
        ("NO MODEL SERVER IS KNOWN TO ANSWER", f"{WORKER} did not come back"),
        mend=power("boot", WORKER),
        booted=(WORKER,),
        off=(WORKER,),
        settings=_IMPATIENT,
        bound=90,
        why="a machine that is away is waited for",
    ),
    Case(
        "stop",
        "the worker hangs for half a minute",
        power("freeze", WORKER),
        "hikari",
        20,
        (_BROUGHT_BACK,),
        then=both(script(HEAD, "sleep 30"), power("boot", WORKER)),
        bound=60,
        why="it hangs for half of that",
    ),
    *(
        Case(phase, "the ssh master is killed", kill_ssh_master, "deepseek", 0, (_NEW_ONE,))
        for phase in ("keepers", "start")
    ),
    Case(
        "verify",
        "the ssh master is killed",
        kill_ssh_master,
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
    ),
    Case(
        "start",
        "sshd of the head is down",
        stop_sshd(HEAD),
        "deepseek",
        0,
        (_NEW_ONE,),
        mend=start_sshd(HEAD),
    ),
    Case(
        "start",
        "sshd of the worker is down",
        stop_sshd(WORKER),
        "hikari",
        20,
        ("cannot ssh to", _BROUGHT_BACK),
        mend=start_sshd(WORKER),
    ),
    Case(
        "stop",
        "sshd of the worker is down",
        stop_sshd(WORKER),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
        mend=start_sshd(WORKER),
    ),
    Case(
        "stop",
        "sshd of the worker is down and the ssh master killed, for four seconds",
        both(stop_sshd(WORKER), kill_ssh_master),
        "deepseek",
        0,
        (_NEW_ONE,),
        then=both(script(WORKER, "sleep 4"), start_sshd(WORKER)),
        mend=start_sshd(WORKER),
    ),
    Case(
        "refuse",
        "sshd of the worker is down and the ssh master killed, for good",
        both(stop_sshd(WORKER), kill_ssh_master),
        "hikari",
        10,
        (f"{WORKER} cannot be reached",),
        mend=start_sshd(WORKER),
    ),
    Case(
        "release",
        "sshd of the worker is down and the ssh master killed, for good",
        both(stop_sshd(WORKER), kill_ssh_master),
        "",
        30,
        ("NO MODEL SERVER IS KNOWN TO ANSWER", f"{WORKER} cannot be reached"),
        mend=start_sshd(WORKER),
        settings=_IMPATIENT,
        bound=60,
        why="a machine that is away is waited for",
    ),
    Case(
        "stop",
        "sshd of the worker is down and the ssh master killed, for good",
        both(stop_sshd(WORKER), kill_ssh_master),
        "hikari",
        30,
        ("NO MODEL SERVER IS KNOWN TO ANSWER", f"{WORKER} cannot be reached"),
        mend=start_sshd(WORKER),
        settings=_IMPATIENT,
        bound=60,
        why="a machine that is away is waited for",
    ),
    Case(
        "start",
        "the first rail is down",
        rail_down(HEAD, _RAIL),
        "",
        30,
        ("NO MODEL SERVER ANSWERS",),
        mend=link(HEAD, _RAIL, "up"),
        settings={"servers.hikari.ready_timeout": 10},
        bound=45,
        why="two starts of ten seconds each time out first",
    ),
    Case(
        "start",
        "the second rail is down",
        rail_down(HEAD, _OTHER_RAIL),
        "hikari",
        20,
        ("deepseek runs otherwise than planned", _BROUGHT_BACK),
        mend=link(HEAD, _OTHER_RAIL, "up"),
    ),
    Case(
        "stop",
        "the management link of the worker is down",
        link(WORKER, _MANAGEMENT, "down"),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
        mend=link(WORKER, _MANAGEMENT, "up"),
        mend_first=True,
    ),
    Case(
        "start",
        "the management link of the head is down",
        link(HEAD, _MANAGEMENT, "down"),
        "deepseek",
        0,
        (_NEW_ONE,),
        mend=link(HEAD, _MANAGEMENT, "up"),
        mend_first=True,
    ),
]
