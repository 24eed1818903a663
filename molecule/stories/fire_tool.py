"""The tool is struck: killed or aborted in each phase, asked twice, without disk or clock."""

from .fire import CONTROLLER, Case
from .fire_strikes import (
    abort,
    both,
    clock_jumps,
    common_clock,
    fault,
    fill_disk,
    kill_the_tool,
    own_clock,
    refused_as_busy,
    small_disk,
    whole_disk,
)
from .machines import HEAD, WORKER

VAR = "/var/lib/spark-pair"
LOGS = "/home/spark/.cache/dsv41-tensorfold/logs"

_FAILS_TO_START = fault(HEAD, "recipe", start="exit0_without_serving")
_HIKARI_FAILS_TOO = both(_FAILS_TO_START, fault(WORKER, "hikari", mode="fail_to_start"))
_BROUGHT_BACK = "hikari serves, verified by a completion"
_NEW_ONE = "deepseek serves, verified by a completion"
_UNTOUCHED = "interrupted before anything was touched; nothing to do"
_ABORTED = "aborted by the operator"


def _killed(phase: str, serves: str, code: int, says: str, **more: object) -> Case:
    return Case(
        phase,
        "the tool is SIGKILLed",
        kill_the_tool,
        serves,
        code,
        (says,),
        **more,  # type: ignore[arg-type]
    )


def _aborted(phase: str, serves: str, code: int, *says: str, **more: object) -> Case:
    return Case(phase, "`abort`", abort, serves, code, says, **more)  # type: ignore[arg-type]


CASES = [
    _killed("observe", "hikari", 10, _UNTOUCHED),
    _killed("refuse", "hikari", 10, _UNTOUCHED),
    _killed("drain", "hikari", 10, _UNTOUCHED),
    _killed("arm", "hikari", 10, _UNTOUCHED),
    _killed("keepers", "hikari", 11, "hikari serves as before"),
    _killed("back_out", "hikari", 11, "hikari serves as before", earlier=(("keepers", abort),)),
    _killed("stop", "hikari", 20, _BROUGHT_BACK),
    _killed("release", "hikari", 20, _BROUGHT_BACK),
    _killed("start", "hikari", 20, _BROUGHT_BACK),
    _killed("verify", "deepseek", 0, _NEW_ONE),
    _killed("restore", "deepseek", 0, _NEW_ONE),
    _killed("commit", "deepseek", 0, _NEW_ONE),
    _killed("recover", "hikari", 20, _BROUGHT_BACK, prepare=_FAILS_TO_START),
    _killed("clean", "", 30, "NO MODEL SERVER ANSWERS", prepare=_HIKARI_FAILS_TOO),
    _killed("stop", "deepseek", 20, _NEW_ONE, before="deepseek"),
    _killed("verify", "hikari", 0, _BROUGHT_BACK, before="deepseek"),
    _killed("restore", "hikari", 0, _BROUGHT_BACK, before="deepseek"),
    _aborted("observe", "hikari", 11, _ABORTED),
    _aborted("refuse", "hikari", 11, _ABORTED),
    _aborted("drain", "hikari", 11, _ABORTED),
    _aborted("arm", "hikari", 11, _ABORTED),
    _aborted("keepers", "hikari", 11, _ABORTED, "hikari serves as before"),
    _aborted("stop", "hikari", 20, _ABORTED, _BROUGHT_BACK),
    _aborted("release", "hikari", 20, _ABORTED, _BROUGHT_BACK),
    _aborted("start", "hikari", 20, _ABORTED, _BROUGHT_BACK),
    _aborted("verify", "hikari", 20, _ABORTED, _BROUGHT_BACK),
    _aborted("restore", "deepseek", 0, _NEW_ONE),
    _aborted("commit", "deepseek", 0, _NEW_ONE),
    _aborted("recover", "hikari", 20, _BROUGHT_BACK, prepare=_FAILS_TO_START),
    _aborted("start", "deepseek", 20, _ABORTED, _NEW_ONE, before="deepseek"),
    _aborted("back_out", "hikari", 11, "hikari serves as before", earlier=(("keepers", abort),)),
    _aborted("clean", "", 30, "NO MODEL SERVER ANSWERS", prepare=_HIKARI_FAILS_TOO),
    Case(
        "drain",
        "a second switch at the same time",
        refused_as_busy("spark-pair switch hikari"),
        "deepseek",
        0,
        (_NEW_ONE,),
    ),
    Case(
        "start",
        "a second switch at the same time",
        refused_as_busy("spark-pair switch deepseek"),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
    ),
    Case(
        "stop",
        "`resume` at the same time",
        refused_as_busy("spark-pair resume"),
        "deepseek",
        0,
        (_NEW_ONE,),
    ),
    Case(
        "stop",
        "the disk of the journal is full",
        fill_disk(HEAD, VAR),
        "deepseek",
        0,
        (_NEW_ONE,),
        prepare=small_disk(HEAD, VAR),
        mend=whole_disk(HEAD, VAR),
    ),
    Case(
        "drain",
        "the disk of the journal is full",
        fill_disk(HEAD, VAR),
        "deepseek",
        10,
        ("no disk room for the journal", "nothing was touched"),
        before="deepseek",
        prepare=small_disk(HEAD, VAR),
        mend=whole_disk(HEAD, VAR),
    ),
    Case(
        "recover",
        "the disk of the journal is full",
        fill_disk(HEAD, VAR),
        "hikari",
        20,
        (_BROUGHT_BACK,),
        prepare=both(small_disk(HEAD, VAR), _FAILS_TO_START),
        mend=whole_disk(HEAD, VAR),
    ),
    Case(
        "stop",
        "the disk of the ranks' logs is full",
        fill_disk(HEAD, LOGS),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
        prepare=small_disk(HEAD, LOGS),
        mend=whole_disk(HEAD, LOGS),
    ),
    Case(
        "drain",
        "the clock jumps a day ahead",
        clock_jumps(86400),
        "deepseek",
        0,
        (_NEW_ONE,),
        prepare=own_clock,
        mend=common_clock,
    ),
    Case(
        "start",
        "the clock jumps a day back",
        clock_jumps(-86400),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
        prepare=own_clock,
        mend=common_clock,
    ),
    *(
        Case(
            phase,
            what,
            strike,
            "deepseek",
            0,
            (_NEW_ONE,),
            by_play=True,
            asked=asked,
            # The play compares the description with its variables.
            settings={"policy.quiet_period": 2},
        )
        for phase, what, strike, asked in (
            ("release", "the controller is SIGKILLed", CONTROLLER.kill, -9),
            ("start", "the controller's ssh master is killed", CONTROLLER.kill_ssh_masters, 0),
        )
    ),
]
