"""From a head without any weights to weights that are there, proven, and stay right.

One story in chapters: each begins where the one before has ended.
"""

import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stories import across, weights
from stories.machines import (
    HEAD,
    assert_untouched,
    exit_code_of,
    fingerprint,
    on,
    unit,
)
from stories.plays import INVENTORY, Controller, Play, Played, ansible_playbook, play, start_play
from stories.waiting import wait_for
from stories.weights import CACHE, CHECKPOINT, ENGRAM, STRANGER, TOKEN

from simulated_pair.naming import CHECKOUT

MIB = 1 << 20
# Half of it is the checkpoint's, which only the head needs, the other half the Engram tables'.
SIZE = 128 * MIB
DISK_MIB = 220
FLOOR_GIB = 0.02
SLOWLY = 1e6
JOB = "download-checkpoint-head"
# One file at a time: on a slow line the first bytes of twelve pieces at once take their time.
SMALL_DISK = {"weights_disk_floor_gib": FLOOR_GIB, "hf_download_workers": 1}


@pytest.fixture(scope="module", autouse=True)
def world(prepared: None) -> Iterator[None]:
    """A pair without weights, whose head has a small disk for them, and a Hub. Hikari serves."""
    with (
        weights.no_weights(DISK_MIB) as kind,
        weights.hub(SIZE, overlay_dtypes_differ=True),
    ):
        print(f"the head's weights lie on a file system of {DISK_MIB} MiB, {kind}")
        yield


@pytest.fixture(autouse=True)
def _full_speed() -> Iterator[None]:
    yield
    weights.slow_down(None)


def run(tags: str, **more: Any) -> Played:
    return play(tags, extra_vars={**SMALL_DISK, **more})


def test_the_plan_tells_every_byte_and_touches_nothing() -> None:
    before = fingerprint()
    planned = run("plan").unchanged()
    table = str(planned.result_of("Show what is left to do", HEAD)["table"])
    assert table in planned.output.replace("\n  ", "\n")
    for words in (
        "47 files of checkpoint",
        "7 files of engram",
        "134.3 MB (128.1 MiB) downloaded",
        f"{HEAD} {CACHE}",
    ):
        assert words in table, table
    too_much = run("plan", weights_disk_floor_gib=0.1).refused().one_sentence()
    assert f"{HEAD} lacks 37.9 MB (36.2 MiB) on {CACHE}" in too_much, too_much
    assert "It fits with rank_files_prune_sources: true" in too_much, too_much
    assert_untouched(before)


def attached(to: Play) -> None:
    """Wait until a play follows the job."""
    wait_for("the play attaches to the job", lambda: "attached to it" in to.said(), 90)


def test_a_download_outlives_its_controller_sshd_and_its_own_process() -> None:
    weights.slow_down(SLOWLY)
    controller = Controller("download", SMALL_DISK)
    try:
        weights.wait_for_bytes(JOB, 2 * MIB)
        controller.send(signal.SIGKILL)
    finally:
        controller.close()
    # Hikari serves, so the work keeps within limits.
    caps = unit(HEAD, f"spark-pair-job-{JOB}", "MemoryMax", "IOWeight", "CPUWeight", "User")
    assert caps == {
        **{"MemoryMax": str(4 << 30), "IOWeight": "20", "CPUWeight": "20"},
        "User": on(HEAD, f"stat -c %U {CACHE}").strip(),
    }
    order = on(HEAD, f"cat /var/lib/spark-pair/jobs/{JOB}/order.json")
    assert '"limit_bytes_per_second": 50000000' in order
    on(HEAD, "systemctl restart ssh")
    there = weights.done_of(JOB)
    weights.wait_for_bytes(JOB, there + MIB)

    again = start_play("download", extra_vars=SMALL_DISK)
    attached(again)
    weights.wait_for_bytes(JOB, there + MIB)
    on(HEAD, f"systemctl kill --kill-whom main --signal KILL spark-pair-job-{JOB}")
    ended = again.finish()
    assert ended.code != 0 and "was killed (SIGKILL)" in ended.words, ended.words
    assert HEAD in ended.words
    assert re.search(r"download checkpoint  [0-9.]+ of 67\.. MB  [0-9.]+ .B/s", ended.output)
    assert "was killed (SIGKILL)" in on(HEAD, "spark-pair jobs")


def test_told_to_stop_it_keeps_what_it_has() -> None:
    weights.slow_down(SLOWLY)
    before, there = weights.run_of(JOB), in_place()
    assert there > MIB
    again = start_play("download", extra_vars=SMALL_DISK)
    weights.wait_for_bytes(JOB, MIB, other_than=before)
    on(HEAD, f"spark-pair jobs stop {JOB}")
    ended = again.finish()
    assert ended.code != 0 and "was stopped; what it has is kept" in ended.words, ended.words
    assert in_place() > there + MIB // 2


def in_place() -> int:
    """Bytes of the checkpoint on the head, whole files and parts."""
    return int(on(HEAD, f"du -sb {CACHE}/hub/models--Mia*").split()[0])


def test_a_disk_that_fills_up_stops_it_and_costs_nothing() -> None:
    weights.slow_down(SLOWLY)
    before = weights.run_of(JOB)
    again = start_play("download", extra_vars=SMALL_DISK)
    weights.wait_for_bytes(JOB, MIB, other_than=before)
    floor = int(FLOOR_GIB * 2**30)
    # Somebody else's files, which nobody could have planned for.
    on(HEAD, f"head -c {weights.free_bytes() - floor - 3 * MIB} /dev/zero >{CACHE}/ballast")
    ended = again.finish()
    assert ended.code != 0 and "is full down to the 0.02 GB" in ended.words, ended.words
    assert "finished files and parts are kept" in ended.words
    assert floor - MIB <= weights.free_bytes() <= floor + 4 * MIB
    held = weights.provenance()["checkpoint"]["files"]
    assert held and in_place() > sum(entry["size"] for entry in held.values())

    on(HEAD, f"rm {CACHE}/ballast")
    weights.slow_down(None)
    came = run("download", hf_download_workers=4).succeeded()
    assert came.changed[HEAD] > 0, came.output
    sent = weights.content_of(weights.asked())
    size = int(on(HEAD, f"du -sbL {weights.snapshot(CHECKPOINT)}").split()[0])
    checkpoint = sum(count for path, count in sent.items() if "-of-00048" not in path)
    words = f"the checkpoint's {size:,} bytes took {checkpoint:,} after three interruptions"
    print(words)
    assert checkpoint < size * 1.15, words


_ACCEPTS = """
import sys
from huggingface_hub import scan_cache_dir, snapshot_download
repo_id, commit, *patterns = sys.argv[1:]
print(
    snapshot_download(repo_id, revision=commit, local_files_only=True, allow_patterns=patterns)
)
for repo in scan_cache_dir().repos:
    if repo.repo_id == repo_id:
        print(*(ref for revision in repo.revisions for ref in revision.refs))
"""


@pytest.mark.parametrize(
    ("name", "repo", "large"),
    [("checkpoint", CHECKPOINT, "*-of-00039*"), ("engram", ENGRAM, "*-0004[78]-of-*")],
)
def test_what_came_is_right_recorded_and_accepted_by_the_real_client(
    name: str, repo: str, large: str
) -> None:
    found, true = weights.hashes(repo), weights.true_hashes(repo)
    assert found and {path: true[path] for path in found} == found
    entry = weights.provenance()[name]
    assert (entry["origin"], entry["repo"]) == ("downloaded", repo)
    assert set(entry["files"]) == set(found)
    owner = on(HEAD, f"stat -c %U {CACHE}").strip()
    assert on(HEAD, f"find {CACHE}/hub ! -user {owner}").strip() == ""
    commit = Path(weights.snapshot(repo)).name
    said = on(
        HEAD,
        f"HOME=~{owner} setpriv --reuid {owner} --regid {owner} --init-groups "
        f"$(head -1 $(readlink -f /usr/local/bin/spark-pair) | tail -c +3) -c "
        f"{shlex.quote(_ACCEPTS)} {repo} {commit} '*.json' {shlex.quote(large)}",
    )
    assert said.splitlines() == [weights.snapshot(repo), f"pinned-{commit[:8]}"]


def test_what_is_there_is_asked_for_no_more_and_what_changes_is_noticed() -> None:
    first, second = sorted(path for path in weights.hashes(ENGRAM) if "-0004" in path)[:2]
    silent, plain = f"{weights.snapshot(ENGRAM)}/{first}", f"{weights.snapshot(ENGRAM)}/{second}"
    spoil = "printf '\\xff\\x00\\xff\\x00' | dd of=$(readlink -f {}) bs=1 seek=70000 conv=notrunc"
    # A disk that lies: same size, same time.
    on(
        HEAD,
        f"f=$(readlink -f {silent}); touch -r $f /tmp/time; "
        f"{spoil.format(silent)}; touch -r /tmp/time $f",
    )
    before = len(weights.asked())
    run("download").unchanged()
    assert len(weights.asked()) == before, weights.asked()[before:]

    verified = run("verify")
    assert verified.code != 0 and not verified.changes
    assert first in verified.words and second not in verified.words, verified.words

    on(HEAD, spoil.format(plain))
    before = len(weights.asked())
    mended = run("download,verify").succeeded()
    assert set(weights.content_of(weights.asked()[before:])) == {first, second}, mended.output
    true = weights.true_hashes(ENGRAM)
    assert {path: true[path] for path in (first, second)}.items() <= weights.hashes(ENGRAM).items()


def test_a_gated_repository_says_what_is_missing_before_the_first_byte() -> None:
    before = len(weights.asked())
    for token, words in (("", "logged in (401)"), (STRANGER, "accept the terms")):
        refused = play(
            "plan",
            extra_vars={**SMALL_DISK, "ablit_graft_enabled": True},
            environment={"HF_TOKEN": token},
        ).refused()
        said = refused.one_sentence()
        assert words in said and f"/{weights.OVERLAY}" in said and "overlay" in said, said
        assert not token or token not in refused.output
    assert not weights.content_of(weights.asked()[before:])


def test_beside_a_server_that_fills_the_memory_nothing_is_started() -> None:
    # A rank that somebody started by hand, before anything of ours describes the pair.
    rank = "--name dsv41-tensorfold --entrypoint python3 tensorfold-dsv41:standin"
    on(HEAD, f"docker run --detach {rank} -c 'import time; time.sleep(600)'")
    try:
        refused = play(
            "download",
            extra_vars={**SMALL_DISK, "ablit_graft_enabled": True},
            environment={"HF_TOKEN": TOKEN},
        ).refused()
    finally:
        on(HEAD, "docker rm --force dsv41-tensorfold")
    said = refused.one_sentence()
    assert "deepseek" in said and "weights_allow_while_serving" in said, said


def test_a_token_opens_the_gated_repository_and_appears_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.yml"
    secret.write_text(f"weights_hub_token: {TOKEN}\nablit_graft_enabled: true\n")
    with weights.leaks_of(TOKEN) as leaks:
        code, said = ansible_playbook(
            *("-i", str(INVENTORY), "site.yml", "--tags", "download", "-vvv"),
            *("-e", f"weights_disk_floor_gib={FLOOR_GIB}", "-e", f"@{secret}"),
        )
    assert code == 0, said
    assert TOKEN not in said, [line for line in said.splitlines() if TOKEN in line][:5]
    assert not leaks, leaks
    assert not weights.files_with(CHECKOUT / "evidence", TOKEN)
    overlay = weights.provenance()["overlay"]
    assert len(overlay["files"]) == 4 and overlay["repo"] == weights.OVERLAY
    assert exit_code_of(HEAD, "ls /run/spark-pair/jobs/*/hf-token")[0] != 0


# ---- an overlay of other types, which cannot be grafted in place --------------------------------


def test_an_overlay_of_other_types_is_grafted_by_the_recipe(tmp_path: Path) -> None:
    checkout = "/srv/graft-recipe"
    on(HEAD, f"rm -rf {checkout}; git clone --quiet /opt/standins/recipe.git {checkout}")
    wanted = {
        "weights_hub_token": TOKEN,
        "ablit_graft_enabled": True,
        "ablit_graft_recipe": checkout,
        # No rank file is cut here; the disk has no room for one besides.
        "weights_expected_bytes": {"rank_file": 2 * MIB, "image": 0, "rewritten": 44 * MIB},
    }
    refused = run("graft", **wanted)
    said = refused.one_sentence()
    assert refused.code != 0 and "ablit_graft_method: recipe" in said and HEAD in said, said
    assert weights.hashes(CHECKPOINT) == weights.true_hashes(CHECKPOINT)

    run("graft,verify", ablit_graft_method="recipe", **wanted).succeeded()
    assert weights.provenance()["checkpoint"]["origin"] == "grafted"
    assert across.grafted_hashes() == across.grafted_by_hand(tmp_path)
    # What it was made from stays, as the Hub gave it.
    assert weights.hashes(CHECKPOINT) == weights.true_hashes(CHECKPOINT)
    run("graft", ablit_graft_method="recipe", **wanted).unchanged()
    on(HEAD, f"rm -r {checkout}")
