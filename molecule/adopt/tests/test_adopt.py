"""A pair that was prepared by hand: what lies there is recognised instead of fetched again.

Weights without a record on both machines, a checkout of the recipe, the image under a name of its
own, and DeepSeek started by hand. No Hub runs: whoever asked one would fail.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pytest
from stories.across import back_by_hand
from stories.machines import HEAD, HOSTS, PAIR, WORKER, exit_code_of, on, on_both, pair_command
from stories.plays import Played, play
from stories.servers import assert_deepseek_alone, let_deepseek_serve

COMMIT = "45ee5d0f"
STATED = {"weights_adopt_checkpoint": COMMIT, "weights_adopt_overlay": "none"}
ENGRAM_FILE = "model-00047-of-00048.safetensors"
ENGRAM = f"hub/models--deepseek-ai--*/snapshots/*/{ENGRAM_FILE}"
IMAGE = "tensorfold-dsv41:exl3-tp2-by-hand"

_STORY: dict[str, Any] = {}


def _as(host: str, script: str) -> None:
    user = {HEAD: PAIR.head.user, WORKER: PAIR.worker.user}[host]
    words = shlex.quote(f"set -eu\n{script}")
    code, said = exit_code_of(host, f"runuser --login {user} --command {words}")
    assert code == 0, said


def _start_deepseek_by_hand() -> None:
    """As its recipe says: keys, a checkout with a change, settings, start.sh."""
    on_both(f"docker tag tensorfold-dsv41:standin {IMAGE}")
    peer = f"{PAIR.worker.user}@{PAIR.worker.addresses[1]}"
    cache = f"{PAIR.worker.home}/.cache/huggingface"
    _as(HEAD, "ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519")
    key = on(HEAD, f"cat {PAIR.head.home}/.ssh/id_ed25519.pub").strip()
    _as(WORKER, f"echo '{key}' >>.ssh/authorized_keys")
    _as(
        HEAD,
        f"""ssh-keyscan -t ed25519 {PAIR.worker.addresses[1]} >.ssh/known_hosts 2>/dev/null
        git clone --quiet /opt/standins/recipe.git recipe
        cd recipe
        echo '# changed by hand' >>start.sh
        echo WORKER={peer} NFS_VOLUME={cache} IMAGE={IMAGE} PREPARE=0 ABLIT=0 THINKING=0 \\
            CONTEXT=262144 STOP_TIMEOUT=5 >scripts/local.sh
        ./start.sh >start.log 2>&1 || {{ cat start.log; exit 1; }}""",
    )


@pytest.fixture(scope="module", autouse=True)
def by_hand(pair: None) -> None:
    pair_command("reset", "--bare")
    for host, unit in ((WORKER, "qwen38fn-miaai-head"), (HEAD, "qwen38fn-miaai-worker")):
        on(host, f"systemctl stop 'qwen38fn-miaai-*.timer' {unit}.service")
    _start_deepseek_by_hand()
    assert_deepseek_alone()
    _STORY["weights"] = weights()


def weights() -> Mapping[str, str]:
    """All that lies in both caches: mode, owner, inode, time and size of each file.

    Without refs and the folders that get them: a name is all that adopting adds.
    """
    but = "-name refs -prune -o ! -name 'models--*'"
    found = {}
    for machine in PAIR.machines:
        look = (
            f"cd {machine.home}/.cache/huggingface && find . {but} -printf '%p %m %u %i %T@ %s\\n'"
        )
        found[machine.name] = on(machine.name, f"{look} | sort")
    return found


def recorded(host: str) -> Mapping[str, Any]:
    """What a machine's record holds, by the tool's own words."""
    told: Mapping[str, Any] = json.loads(on(host, "spark-pair weights --json"))
    assert told["differences"] == []
    return dict(told["artefacts"])


def adopt() -> Played:
    return play("adopt", extra_vars=STATED)


def test_first_it_says_what_lies_there_and_which_variable_is_missing() -> None:
    played = play("tools,adopt")
    assert played.code != 0
    for words in (*HOSTS, "rank 0: 45ee5d0f/checkpoint/rank-cache/rank0of2-", "engram: "):
        assert words in played.output, "the operator does not see what was found"
    for words in (f'weights_adopt_checkpoint: "{COMMIT}"', 'weights_adopt_overlay: "none"'):
        assert words in played.words
    assert [on(host, "spark-pair weights").split()[0] for host in HOSTS] == ["nothing"] * 2


def test_one_wrong_byte_is_refused_by_name_and_the_rest_is_recorded() -> None:
    cache = f"{PAIR.worker.home}/.cache/huggingface"
    change = f"""cd {cache}; file=$(readlink -f {ENGRAM}); touch -r "$file" /tmp/time
        cp --preserve=all "$file" /tmp/right
        printf X | dd of="$file" bs=1 seek=5000 conv=notrunc status=none
        ! cmp --silent "$file" /tmp/right; touch -r /tmp/time "$file" """
    on(WORKER, change)
    played = adopt()
    assert played.code != 0
    assert ENGRAM_FILE in played.words and "wrong content" in played.words
    worker = recorded(WORKER)
    assert ENGRAM_FILE not in worker["engram"]["files"] and len(worker["engram"]["files"]) == 6
    assert sorted(worker) == ["engram", "rank1"]
    assert sorted(recorded(HEAD)) == ["checkpoint", "engram", "rank0"]
    # In place, so that the file is the one that was found.
    mend = 'cat /tmp/right >"$file"; touch -r /tmp/time "$file"; rm /tmp/right /tmp/time'
    on(WORKER, f"cd {cache}; file=$(readlink -f {ENGRAM}); {mend}")


def test_what_was_refused_is_adopted_once_it_is_right() -> None:
    played = adopt().succeeded()
    assert played.changes and all(one.startswith(WORKER) for one in played.changes)
    for host in HOSTS:
        assert ENGRAM_FILE in recorded(host)["engram"]["files"]
        assert {one["origin"] for one in recorded(host).values()} == {"adopted"}


def test_a_second_time_there_is_nothing_to_adopt_and_nothing_to_state() -> None:
    play("adopt").unchanged()


def test_a_plain_run_takes_the_pair_over_and_downloads_nothing() -> None:
    play().succeeded()
    assert_deepseek_alone()
    jobs = on_both("spark-pair jobs --json")
    assert not [text for text in jobs.values() if "download" in text]
    assert weights() == _STORY["weights"], "the weights were touched"


def test_a_second_plain_run_changes_nothing() -> None:
    play().unchanged()


def test_the_way_back_to_hikari_and_here_again() -> None:
    # By the machine's own command: what the plays add to it is the same on every pair.
    back_by_hand()
    let_deepseek_serve()
    assert weights() == _STORY["weights"]
