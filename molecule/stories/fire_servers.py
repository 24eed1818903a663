"""A server, its units, its port or its memory are struck."""

from .fire import Act, Case, nothing
from .fire_strikes import (
    both,
    fault,
    hikari_ignores_sigterm,
    hikari_is_dead,
    hold_memory,
    kill_rank,
    mask,
    no_reviver,
    no_squatter,
    revive,
    script,
    squat,
    unmask,
    well,
)
from .machines import HEAD, WORKER

_DEEPSEEK = "dsv41-tensorfold.service"
_HIKARI = "qwen38fn-miaai-head.service"
_BROUGHT_BACK = "hikari serves, verified by a completion"
_NEW_ONE = "deepseek serves, verified by a completion"
_LAUNCH = "/var/lib/spark-pair/generations/*/launch"
_FAILS_TO_START = fault(HEAD, "recipe", start="exit0_without_serving")


def _engine(words: str, says: str, mode: str, **values: object) -> Case:
    """DeepSeek misbehaves when it is asked to prove itself."""
    strike = fault(HEAD, "engine", mode=mode, **values)
    return Case("verify", words, strike, "hikari", 20, (says, _BROUGHT_BACK))


def _launcher(words: str, says: str, start: str, **more: object) -> Case:
    strike = fault(HEAD, "recipe", start=start)
    return Case("start", words, strike, "hikari", 20, (says, _BROUGHT_BACK), **more)  # type: ignore[arg-type]


def _on_both(rank: int, mode: str) -> Act:
    return both(*(fault(host, "engine", mode=mode, rank=rank) for host in (HEAD, WORKER)))


def _memory(who: str, gib: int, serves: str, code: int, says: tuple[str, ...]) -> Case:
    """Memory is held from the stop on: the first look of the next phase may be its only one."""
    words = f"memory does not come back: too little for {who}"
    earlier = (("stop", fault(WORKER, "memory", held_gib=gib)),)
    says = (f"{WORKER} has", *says)
    return Case("release", words, hold_memory(WORKER, gib), serves, code, says, earlier=earlier)


CASES = [
    _engine("answers 200 and generates nothing", "does not generate", "dead"),
    _engine("empty text", "no text", "empty"),
    _engine("one repeated character", "repeat", "repeat"),
    _engine("another model's name", "came from model", "wrong_model"),
    _engine("always an instant stop", "stop", "instant_stop_always"),
    _engine("an error for every request", "500", "error500"),
    _engine("metrics without the load", "tensorfold:num_requests_running", "no_metrics"),
    Case(
        "verify",
        "a single instant stop",
        fault(HEAD, "engine", mode="instant_stop_once"),
        "deepseek",
        0,
        (_NEW_ONE,),
    ),
    Case(
        "verify",
        "a request that is always counted as running",
        fault(HEAD, "engine", mode="zombie"),
        "deepseek",
        0,
        (_NEW_ONE,),
    ),
    Case(
        "start",
        "half the context",
        fault(HEAD, "engine", mode="smaller_context"),
        "hikari",
        20,
        ("131072", _BROUGHT_BACK),
    ),
    *(
        Case(
            "start",
            f"rank {rank} ends while it loads",
            _on_both(rank, "exit_while_loading"),
            "hikari",
            20,
            ("dsv41-tensorfold", _BROUGHT_BACK),
        )
        for rank in (0, 1)
    ),
    *(
        Case("verify", f"rank {rank} ends", kill_rank(host), "hikari", 20, (_BROUGHT_BACK,))
        for rank, host in enumerate((HEAD, WORKER))
    ),
    _launcher(
        "start.sh hangs", "was not ready", "hang", settings={"servers.deepseek.ready_timeout": 6}
    ),
    _launcher("start.sh says 0 and starts nothing", "ended with success", "exit0_without_serving"),
    _launcher("start.sh says 1 and leaves both ranks", "dsv41-tensorfold", "exit1_ranks_running"),
    _launcher("start.sh dies half-way", "dsv41-tensorfold", "die_half_way"),
    Case(
        "start",
        "the new unit fails to start",
        script(HEAD, f"chmod a-x {_LAUNCH}"),
        "hikari",
        20,
        (f"{_DEEPSEEK} on {HEAD} failed", _BROUGHT_BACK),
        mend=script(HEAD, f"chmod a+x {_LAUNCH}"),
    ),
    Case(
        "start",
        "the old server's unit fails to start",
        fault(WORKER, "hikari", mode="fail_to_start"),
        "deepseek",
        20,
        (f"{_HIKARI} on {WORKER} failed", _NEW_ONE),
        before="deepseek",
    ),
    Case(
        "recover",
        "the former server's unit fails to start",
        fault(WORKER, "hikari", mode="fail_to_start"),
        "",
        30,
        ("NO MODEL SERVER ANSWERS", f"{_HIKARI} on {WORKER} failed"),
        prepare=_FAILS_TO_START,
    ),
    Case(
        "start",
        "neither server starts",
        both(
            fault(WORKER, "hikari", mode="fail_to_start"),
            fault(HEAD, "recipe", start="exit1_ranks_running"),
        ),
        "",
        30,
        ("NO MODEL SERVER ANSWERS", f"{_HIKARI} on {WORKER} failed"),
        before="deepseek",
        finished_by="deepseek",
    ),
    Case(
        "stop",
        "a unit ignores SIGTERM",
        nothing,
        "deepseek",
        0,
        (_NEW_ONE,),
        prepare=hikari_ignores_sigterm,
    ),
    Case(
        "refuse",
        "the new unit is masked",
        mask(HEAD, _DEEPSEEK),
        "hikari",
        10,
        (f"{_DEEPSEEK} on {HEAD} is masked",),
        mend=unmask(HEAD, _DEEPSEEK),
    ),
    Case(
        "refuse",
        "a unit of the way back is masked",
        mask(WORKER, _HIKARI),
        "hikari",
        10,
        (f"{_HIKARI} on {WORKER} is masked",),
        mend=unmask(WORKER, _HIKARI),
        mend_first=True,
    ),
    Case(
        "keepers",
        "the new unit is masked",
        mask(HEAD, _DEEPSEEK),
        "hikari",
        20,
        (_DEEPSEEK, _BROUGHT_BACK),
        mend=unmask(HEAD, _DEEPSEEK),
    ),
    Case(
        "stop",
        "a unit of the way back is masked, and the new server fails",
        mask(WORKER, _HIKARI),
        "",
        30,
        ("NO MODEL SERVER ANSWERS", _HIKARI),
        prepare=_FAILS_TO_START,
        mend=unmask(WORKER, _HIKARI),
        mend_first=True,
    ),
    Case(
        "stop",
        "a keeper that nobody has described revives the old server",
        revive(WORKER, _HIKARI),
        "hikari",
        20,
        (f"{_HIKARI} on {WORKER}", _BROUGHT_BACK),
        mend=no_reviver(WORKER),
        settings={"policy.stop_timeout": 6},
    ),
    Case(
        "release",
        "a keeper that nobody has described revives the old server",
        revive(WORKER, _HIKARI),
        "hikari",
        20,
        ("available", _BROUGHT_BACK),
        mend=no_reviver(WORKER),
    ),
    Case(
        "start",
        "a keeper that nobody has described revives the old server",
        revive(WORKER, _HIKARI),
        "hikari",
        20,
        (_DEEPSEEK, _BROUGHT_BACK),
        mend=no_reviver(WORKER),
    ),
    Case(
        "refuse",
        "a port squatter",
        squat(HEAD, 8888),
        "hikari",
        10,
        (f"port 8888 on {HEAD} is in use by something that is not deepseek",),
        mend=no_squatter(HEAD),
    ),
    Case(
        "start",
        "a port squatter",
        squat(HEAD, 8888),
        "hikari",
        20,
        ("8888", _BROUGHT_BACK),
        mend=no_squatter(HEAD),
    ),
    Case(
        "start",
        "a port squatter",
        squat(WORKER, 8000),
        "deepseek",
        20,
        (_HIKARI, _NEW_ONE),
        before="deepseek",
        mend=no_squatter(WORKER),
    ),
    _memory("the new server", 15, "hikari", 20, ("available", _BROUGHT_BACK)),
    _memory("either server", 60, "", 30, ("NO MODEL SERVER ANSWERS",)),
    Case(
        "drain",
        "metrics are gone",
        fault(WORKER, "hikari", mode="no_metrics"),
        "hikari",
        11,
        ("did not become idle", "it still serves and nothing was stopped"),
    ),
    Case(
        "drain",
        "a request that is always counted as running",
        fault(WORKER, "hikari", busy=1),
        "hikari",
        11,
        ("without a token: stuck", "it still serves and nothing was stopped"),
        # Of a reply that may take long, a short one: the drain's own deadline comes soon.
        settings={"policy.long_request_allowance": 4},
    ),
    Case(
        "drain",
        "rank 1 ends",
        kill_rank(WORKER),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
    ),
    Case(
        "drain",
        "a request that is always counted as running, `--drain stop`",
        fault(HEAD, "engine", mode="zombie"),
        "hikari",
        0,
        (_BROUGHT_BACK,),
        before="deepseek",
        options="--drain stop",
    ),
    Case(
        "keepers",
        "a request at the last moment",
        fault(WORKER, "hikari", busy=1),
        "hikari",
        11,
        ("was asked again at the last moment", "hikari serves as before"),
        mend=well(WORKER, "hikari"),
    ),
    Case(
        "observe",
        "the old server answers 200 and generates nothing",
        hikari_is_dead,
        "deepseek",
        0,
        (_NEW_ONE,),
        bound=45,
        why="three failed probes over the patience come first",
    ),
    Case(
        "verify",
        "the old server answers 200 and generates nothing",
        hikari_is_dead,
        "deepseek",
        20,
        ("does not generate", _NEW_ONE),
        before="deepseek",
        bound=35,
        why="two probes of five seconds each time out first",
    ),
    Case(
        "verify",
        "the old server's metrics are gone",
        fault(WORKER, "hikari", mode="no_metrics"),
        "hikari",
        0,
        (_BROUGHT_BACK, "metrics cannot be read"),
        before="deepseek",
    ),
]
