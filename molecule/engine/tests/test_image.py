"""The engine's image: built from what is declared, the same on both machines, and never trusted.

One story in chapters: each begins where the one before has ended. Hikari serves until the last two,
which begin with a pair on which nothing is installed.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from stories import across, preparation
from stories.machines import (
    HEAD,
    WORKER,
    assert_untouched,
    clear_faults,
    exit_code_of,
    fingerprint,
    on,
    on_both,
    pair_command,
    set_fault,
)
from stories.plays import Played, play, start_play
from stories.servers import assert_deepseek_alone, assert_hikari_alone, back_to_hikari
from stories.waiting import wait_for

from simulated_pair.naming import CHECKOUT

STANDIN = CHECKOUT / "simulated_pair" / "standins" / "recipe"
OTHER = "tensorfold-dsv41:standin"
"""An image of other content, which is on both machines and holds no kit."""
MIB = 1 << 20
FETCH = "image-fetch-worker"
STOCK = {"tensorfold_service_image": ""}
"""Nothing but the recipe itself."""
EXAMPLE = CHECKOUT / "inventory/example/group_vars/spark_pair/production.yml.example"
"""What a pair in production sets, as an operator copies it."""
SLOWLY = {"megabytes_per_second": 4, "memory_gib": 4, "io_weight": 20, "cpu_weight": 20}


class Declared:
    """What the operator of a pair in production declares: the example, with files of his own."""

    def __init__(self, folder: Path) -> None:
        make = [sys.executable, "-I", str(STANDIN / "make_kit.py"), str(folder)]
        digest = subprocess.check_output(make, text=True).strip()
        example = yaml.safe_load(EXAMPLE.read_text())
        patches = zip(
            example["engine_image_patches"],
            (
                STANDIN / "patches" / name
                for name in ("0001-round-rows.patch", "0002-long-prompts.patch")
            ),
            strict=True,
        )
        self.variables: Mapping[str, Any] = {
            **example,
            "tensorfold_service_image": "",
            "engine_image_patches": [
                {
                    **declared,
                    "path": str(patch),
                    "sha256": hashlib.sha256(patch.read_bytes()).hexdigest(),
                }
                for declared, patch in patches
            ],
            "engine_image_kit": {
                **example["engine_image_kit"],
                "path": str(folder),
                "manifest_sha256": digest,
            },
        }

    def run(self, tags: str | None, **more: Any) -> Played:
        return play(tags, extra_vars={**self.variables, **more})


def remove_images() -> None:
    """Remove the engines' images from both machines, but for the one a pair begins with."""
    on_both(
        "docker images --format '{{.Repository}}:{{.Tag}}' | grep ^tensorfold | "
        f"grep -v '^{OTHER}$' | xargs -r docker rmi --force; rm -rf ~spark/.cache/spark-pair"
    )


class SoFar:
    """What one chapter leaves for the next."""

    image = ""
    kept = ""


@pytest.fixture(scope="module", autouse=True)
def world(prepared: None) -> Iterator[None]:
    back_to_hikari()
    # A story that failed before this one may have left images of its own.
    remove_images()
    yield
    back_to_hikari()
    remove_images()
    # What is wanted of the servers was changed as well.
    preparation.forget()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Declared:
    return Declared(tmp_path_factory.mktemp("kit"))


def images(host: str) -> set[str]:
    """The engines' images on a machine, by their names."""
    listed = on(host, "docker images --format '{{.Repository}}:{{.Tag}}'").split()
    return {name for name in listed if name.startswith("tensorfold-dsv41:") and name != OTHER}


def layers(host: str, image: str) -> list[str]:
    """What an image consists of."""
    (told,) = json.loads(on(host, f"docker image inspect {image}"))
    return [*told["RootFS"]["Layers"], *sorted(told["Config"]["Labels"].values())]


def jobs(host: str) -> dict[str, str]:
    """The run of every job about images on a machine."""
    found = {}
    for path in on(host, "ls -d /var/lib/spark-pair/jobs/image-* 2>/dev/null || true").split():
        found[Path(path).name] = json.loads(on(host, f"cat {path}/request.json"))["id"]
    return found


def scratch(host: str) -> str:
    """Archives and copies of checkouts that are left in an account's cache."""
    look = "find /home/spark/.cache/spark-pair /srv/sparkle/.cache/spark-pair -mindepth 1"
    return on(host, f"{look} ! -name build ! -name '*.log' 2>/dev/null || true").strip()


def test_a_check_says_what_would_be_built_and_sent_and_touches_nothing(wide: Declared) -> None:
    before = fingerprint()
    checked = play("image", extra_vars=wide.variables, check=True).succeeded()
    for words in ("to do: build tensorfold-dsv41:", "to do: send tensorfold-dsv41:"):
        assert words in checked.output, checked.output
    assert_untouched(before)


def test_a_transfer_that_is_killed_leaves_the_image_built_and_its_archive(wide: Declared) -> None:
    sending = start_play(
        "image", extra_vars={**wide.variables, "hf_transfer_while_serving": SLOWLY}
    )
    # It is built and written to an archive first.
    across.wait_for_bytes(WORKER, FETCH, 8 * MIB, seconds=300)
    on(WORKER, f"systemctl kill --kill-whom main --signal KILL spark-pair-job-{FETCH}")
    ended = sending.finish()
    assert ended.code != 0 and "was killed (SIGKILL)" in ended.words, ended.words
    (SoFar.image,) = images(HEAD)
    assert not images(WORKER)
    count = "import os; print(len(os.listdir('/kit/wide')))"
    assert on(HEAD, f'docker run --rm {SoFar.image} python3 -c "{count}"').strip() == "64"
    wait_for("nobody sends any more", lambda: not across.daemons(HEAD), 30)


def test_the_next_run_builds_nothing_and_sends_only_what_is_left(wide: Declared) -> None:
    before = jobs(HEAD)
    size = across.result(HEAD, "image-export-head")["size"]
    wide.run("image").succeeded()
    assert jobs(HEAD)["image-build-head"] == before["image-build-head"]
    assert 0 < across.result(WORKER, FETCH)["payload_bytes"] <= size - 8 * MIB
    assert layers(WORKER, SoFar.image) == layers(HEAD, SoFar.image)
    assert not scratch(HEAD) and not scratch(WORKER)


def test_equal_images_are_neither_built_nor_sent_again(wide: Declared) -> None:
    before = jobs(HEAD), jobs(WORKER)
    # Another name for the same content elsewhere, as another store would call it, says nothing.
    on(WORKER, f"docker tag {SoFar.image} tensorfold-dsv41:by-hand")
    wide.run("image").unchanged()
    assert (jobs(HEAD), jobs(WORKER)) == before


def test_an_image_of_other_content_is_replaced_and_stays_findable(wide: Declared) -> None:
    on(WORKER, f"docker tag {OTHER} {SoFar.image}")
    wide.run("image").succeeded()
    assert layers(WORKER, SoFar.image) == layers(HEAD, SoFar.image)
    (SoFar.kept,) = (name for name in images(WORKER) if "-was-" in name)
    assert layers(WORKER, SoFar.kept) == layers(WORKER, OTHER)


def test_an_image_is_removed_by_name_unless_it_is_needed_or_in_use(wide: Declared) -> None:
    on(WORKER, "docker create --name somebodys tensorfold-dsv41:by-hand tensorfold")
    before = images(HEAD), images(WORKER)
    asked = [SoFar.image, "tensorfold-dsv41:by-hand"]
    refused = wide.run("image", engine_image_prune=asked).refused()
    for words in ("deepseek is to run it", f"on {WORKER} it is in use by somebodys"):
        assert words in refused.words, refused.words
    assert (images(HEAD), images(WORKER)) == before
    on(WORKER, "docker rm somebodys")
    wide.run("image", engine_image_prune=["tensorfold-dsv41:by-hand"]).succeeded()
    assert images(WORKER) == before[1] - {"tensorfold-dsv41:by-hand"}


def test_a_build_that_ends_well_without_an_image_is_a_failure() -> None:
    set_fault(HEAD, "recipe", prepare="exit0_without_image")
    failed = play("image", extra_vars=STOCK)
    clear_faults()
    assert failed.code != 0 and "ended well, but there is no image" in failed.words, failed.words
    assert images(HEAD) == {SoFar.image}
    assert not scratch(HEAD)
    assert_hikari_alone()


def test_an_image_without_the_kit_is_refused_before_anything_is_stopped(wide: Declared) -> None:
    refused = wide.run("image,service,cutover", tensorfold_service_image=OTHER)
    assert refused.code != 0 and "lacks wide/rows-17-experts.cubin" in refused.words, refused.words
    assert_hikari_alone()


def test_one_that_loses_it_later_is_refused_by_the_switch_itself(wide: Declared) -> None:
    wide.run("service").succeeded()
    on(HEAD, f"docker tag {SoFar.image} kept:1; docker tag {OTHER} {SoFar.image}")
    on(WORKER, f"docker tag {SoFar.image} kept:1; docker tag {OTHER} {SoFar.image}")
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek")
    assert code == 10 and "of the 64 files of the kit in /kit" in said, said
    on(HEAD, f"docker tag kept:1 {SoFar.image}")
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek")
    assert code == 10 and "is not the same on both machines" in said, said
    on(WORKER, f"docker tag kept:1 {SoFar.image}")
    on_both("docker rmi kept:1")
    assert_hikari_alone()


def test_wide_rows_without_the_patch_are_refused_by_the_recipe_itself(wide: Declared) -> None:
    own = {"engine_image_patches": [], "tensorfold_service_image": SoFar.image}
    wide.run("service", **own).succeeded()
    code, said = exit_code_of(HEAD, "spark-pair switch deepseek")
    assert code == 10, said
    assert f"the dry run of deepseek failed on {HEAD} (" in said, said
    assert "ROUND_ROWS is 16 (" in said and "engine_image_patches" in said, said
    assert_hikari_alone()


def assert_runs(image: str, **environment: str) -> None:
    """Both ranks run that image with those variables, and DeepSeek serves alone."""
    assert_deepseek_alone()
    for host in (HEAD, WORKER):
        (told,) = json.loads(on(host, "docker inspect dsv41-tensorfold"))
        assert told["Config"]["Image"] == image, host
        assert {f"{name}={value}" for name, value in environment.items()} <= {
            *told["Config"]["Env"]
        }


def play_from_nothing(variables: Mapping[str, Any]) -> str:
    """A plain run on a pair that has nothing but its weights, and the same again; the name of the
    image that it has built and sent."""
    pair_command("reset", "--bare", "--recorded")
    remove_images()
    assert not images(HEAD) and not images(WORKER)
    assert not jobs(HEAD) and not jobs(WORKER)
    play(None, extra_vars=variables).succeeded()
    assert "image-build-head" in jobs(HEAD) and FETCH in jobs(WORKER)
    (built,) = images(HEAD)
    assert images(WORKER) == {built}
    assert layers(WORKER, built) == layers(HEAD, built)
    ran = jobs(HEAD), jobs(WORKER)
    play(None, extra_vars=variables).unchanged()
    assert (jobs(HEAD), jobs(WORKER)) == ran
    return built


def test_a_plain_run_on_a_fresh_pair_builds_sends_and_starts_the_production_set(
    wide: Declared,
) -> None:
    built = play_from_nothing(wide.variables)
    assert built == SoFar.image, "the same is declared as in the chapters before"
    assert_runs(built, TF_DS_ROUND_ROWS="32", TF_DS_STREAMS="8", TF_DS_PREFILL_INTERLEAVE_MS="250")


def test_a_plain_run_on_a_fresh_pair_builds_sends_and_starts_the_stock_recipe() -> None:
    built = play_from_nothing(STOCK)
    assert built.startswith("tensorfold-dsv41:") and built != SoFar.image
    assert_runs(built, TF_DS_ROUND_ROWS="16", TF_DS_STREAMS="4")
