"""The recipe's checkout: made from what is declared alone, and nobody's edit is lost or used.

One story in chapters, while Hikari serves: each begins where the one before has ended.
"""

import hashlib
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from stories import preparation
from stories.machines import HEAD, PAIR, assert_untouched, exit_code_of, fingerprint, on
from stories.plays import Played, Together, play
from stories.servers import assert_hikari_alone, back_to_hikari
from stories.waiting import wait_for

from simulated_pair.naming import CHECKOUT

STANDIN = CHECKOUT / "simulated_pair" / "standins" / "recipe"
COMMIT = (STANDIN / "HEAD.txt").read_text().strip()
ROWS, PROMPTS, ALIEN = sorted((STANDIN / "patches").iterdir())
FILES_PORT = 8097
BY_HAND = f"{PAIR.head.home}/recipe-by-hand"


def declared(*patches: Path) -> list[dict[str, str]]:
    """The queue as its owner declares it."""
    return [
        {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in patches
    ]


def as_owner(script: str) -> str:
    """Run a script on the head as the account that owns the recipe."""
    words = shlex.quote(f"set -eu\n{script}")
    code, said = exit_code_of(HEAD, f"runuser --login {PAIR.head.user} --command {words}")
    assert code == 0, said
    return said


def folders(place: str) -> set[str]:
    """All that lies below a place of ours on the head, finished or not."""
    found = f"find /var/lib/spark-pair/{place} -mindepth 1 -maxdepth 1 2>/dev/null || true"
    return set(on(HEAD, found).split())


def checkouts() -> set[str]:
    return folders("recipes")


class Story:
    """What the chapters hand on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kit = folder / "kit"
        make = [sys.executable, "-I", str(STANDIN / "make_kit.py"), str(self.kit)]
        self.manifest = subprocess.check_output(make, text=True).strip()
        self.checkout = ""
        self.generation = ""

    def variables(self, *patches: Path, kit: Path | None = None, **more: Any) -> Mapping[str, Any]:
        """Everything that is declared about the engine's inputs."""
        return {
            "engine_image_patches": declared(*patches),
            "engine_image_kit": {
                "path": str(kit or self.kit), "manifest_sha256": self.manifest, "count": 64,
            },
            **more,
        }  # fmt: skip

    def service(self, *patches: Path) -> Played:
        return play("service", extra_vars=self.variables(*patches))


@pytest.fixture(scope="module")
def story(pair: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    back_to_hikari()
    preparation.prepare()
    yield Story(tmp_path_factory.mktemp("engine"))
    preparation.forget()


def test_service_alone_makes_a_checkout_that_differs_by_the_declared_patches(story: Story) -> None:
    before, old = checkouts(), folders("generations")
    story.service(ROWS, PROMPTS).succeeded()
    (story.checkout,) = checkouts() - before
    (story.generation,) = folders("generations") - old
    for folder in (story.checkout, f"{story.generation}/recipe"):
        said = as_owner(f"cd {folder}; git rev-parse HEAD; git status --porcelain -uall")
        assert said.split("\n")[0] == COMMIT
        changed = {line[3:] for line in said.splitlines()[1:]}
        assert changed == {"start.sh", "scripts/memguard.sh", "tools/prompt_memory.sh"}
        as_owner(
            f"cd {folder}/kit; grep -c . MANIFEST | grep -qx 64; sha256sum --quiet -c MANIFEST"
        )
    assert before <= checkouts(), "the checkout that was there must stay"
    assert_hikari_alone()


@pytest.fixture(scope="module")
def refusals(story: Story) -> Iterator[Together]:
    """Declarations that are not true, and the true one once more."""
    bad = story.folder / "bad-kit"
    shutil.copytree(story.kit, bad)
    (bad / "wide/rows-32-linear.cubin").write_bytes(b"half merged")
    altered = story.folder / "altered.patch"
    altered.write_bytes(PROMPTS.read_bytes())
    wrong_patch = story.variables(ROWS, altered)
    altered.write_bytes(PROMPTS.read_bytes() + b"\n")
    missing = story.folder / "missing.patch"
    missing.write_bytes(b"x")
    lost_patch = story.variables(missing)
    missing.unlink()
    alien = story.variables(ROWS, PROMPTS, ALIEN)
    together = Together(
        {
            "again": {"tags": "service", "extra_vars": story.variables(ROWS, PROMPTS)},
            "kit": {
                "tags": "image,service,cutover",
                "extra_vars": story.variables(ROWS, PROMPTS, kit=bad),
            },
            "wrong patch": {"tags": "service", "extra_vars": wrong_patch},
            "lost patch": {"tags": "service", "extra_vars": lost_patch},
            "dry": {"tags": "service", "extra_vars": alien, "check": True},
        }
    )
    yield together
    together.close()


def test_a_second_time_there_is_nothing_to_do(refusals: Together) -> None:
    refusals["again"].unchanged()


def test_one_bad_file_of_the_kit_is_refused_while_hikari_serves(refusals: Together) -> None:
    words = refusals["kit"].refused().words
    assert "wide/rows-32-linear.cubin is not what its MANIFEST says" in words
    assert "engine_image_kit" in words and "Nothing was copied" in words
    assert_hikari_alone()


def test_a_patch_that_is_another_one_or_none_names_the_variable_and_both_hashes(
    story: Story, refusals: Together
) -> None:
    words = refusals["wrong patch"].refused().words
    right, wrong = (
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (PROMPTS, story.folder / "altered.patch")
    )
    for word in ("engine_image_patches", "altered.patch", right, wrong):
        assert word in words
    assert (
        "missing.patch cannot be read on this controller" in refusals["lost patch"].refused().words
    )


def test_check_mode_says_what_would_be_checked_out(refusals: Together) -> None:
    assert f"with {ROWS.name}, {PROMPTS.name}, {ALIEN.name}" in refusals["dry"].output


@pytest.fixture
def served(story: Story) -> Iterator[str]:
    """Address on the head's loopback of a patch, and of the kit in an archive."""
    folder = PAIR.head.state / "served"
    folder.mkdir()
    shutil.copy(ROWS, folder)
    with tarfile.open(folder / "kit.tar", "w") as archive:
        archive.add(story.kit, "kit")
    # What is fetched lies under the name of its content: an earlier chapter may have sent it.
    on(HEAD, "rm -rf /var/lib/spark-pair/patches /var/lib/spark-pair/kits")
    unit, root = "story-files", "/srv/simulation/served"
    server = f"python3 -m http.server --bind 127.0.0.1 --directory {root} {FILES_PORT}"
    on(HEAD, f"systemd-run --quiet --unit {unit} {server}")
    try:
        wait_for("files are served", lambda: fetched("kit.tar"), 30)
        yield f"http://somebody:hunter2@127.0.0.1:{FILES_PORT}"
    finally:
        on(HEAD, f"systemctl stop {unit}")
        shutil.rmtree(folder)


def fetched(name: str) -> bool:
    code, _ = exit_code_of(
        HEAD, f"curl -sf --noproxy '*' -o /dev/null http://127.0.0.1:{FILES_PORT}/{name}"
    )
    return code == 0


def test_patch_and_kit_come_from_their_addresses(story: Story, served: str) -> None:
    before = checkouts()
    patch = {"url": f"{served}/{ROWS.name}?token=hunter2", "sha256": declared(ROWS)[0]["sha256"]}
    kit = {"url": f"{served}/kit.tar", "manifest_sha256": story.manifest, "count": 64}
    wrong = {**patch, "sha256": "0" * 64}
    played = play("service", extra_vars={"engine_image_patches": [wrong]})
    assert played.code != 0
    said = f"{HEAD}: the patch {ROWS.name} cannot be fetched, or is not the declared one"
    assert said in played.words and "correct engine_image_patches" in played.words, played.words
    lost = {**kit, "url": f"{served}/none.tar"}
    away = play("service", extra_vars={"engine_image_kit": lost})
    assert away.code != 0
    assert f"{HEAD}: the kit none.tar cannot be fetched (" in away.words, away.words
    assert "404" in away.words and "correct engine_image_kit" in away.words, away.words
    assert checkouts() == before
    right = play(
        "service", extra_vars={"engine_image_patches": [patch], "engine_image_kit": kit}
    ).succeeded()
    for one in (played, away, right):
        assert "hunter2" not in one.output
    (new,) = checkouts() - before
    as_owner(f"cd {new}/kit; sha256sum --quiet -c MANIFEST; grep -q 16 ../start.sh")
    assert_hikari_alone()


def test_a_patch_that_does_not_apply_names_itself_and_leaves_nothing(story: Story) -> None:
    before = checkouts()
    played = story.service(ROWS, PROMPTS, ALIEN)
    assert played.code != 0
    assert f"the patch {ALIEN.name} does not apply to {COMMIT[:12]}" in played.words
    assert "start.sh, hunk @@ -35,7 +35,7 @@" in played.words
    assert checkouts() == before
    assert_hikari_alone()


def test_a_foreign_edit_is_shown_and_neither_used_nor_lost(story: Story) -> None:
    edits = f"cd {story.checkout}; echo '# by hand' >>start.sh; echo mine >mine.txt"
    as_owner(edits)
    as_owner(f"echo '# by hand, too' >>{story.generation}/recipe/stop.sh")
    before = fingerprint((HEAD,))
    words = story.service(ROWS, PROMPTS).refused().words
    for word in ("start.sh (changed), mine.txt (new)", "+# by hand", "engine_image_patches"):
        assert word in words
    assert_untouched(before)
    # By the very words of the refusal.
    command = words[words.index("'git") + 1 : words.index("', and declare that file")]
    kept = story.folder / "my.patch"
    as_owner(command)
    kept.write_text(on(HEAD, f"cat {PAIR.head.home}/my.patch; rm {PAIR.head.home}/my.patch"))
    as_owner(
        f"cd {story.checkout}; git checkout -q -- start.sh; git reset -q mine.txt; rm mine.txt"
    )
    words = story.service(ROWS, PROMPTS).refused().words
    assert f"the generation {story.generation} was changed" in words
    assert "stop.sh (changed)" in words
    as_owner(f"cd {story.generation}/recipe; git checkout -q -- stop.sh")
    there = checkouts()
    story.service(ROWS, PROMPTS, kept).succeeded()
    (new,) = checkouts() - there
    assert on(HEAD, f"tail -n 1 {new}/start.sh; cat {new}/mine.txt") == "# by hand\nmine\n"
    assert_hikari_alone()


def test_a_checkout_of_somebodys_own_becomes_a_patch(story: Story) -> None:
    as_owner(
        f"""git clone -q /opt/standins/recipe.git {BY_HAND}; cd {BY_HAND}
        sed -i '2i # as we run it' start.sh; rm tools/bench.py; echo own >own.txt
        mkdir -p kit/wide; head -c 300 /dev/zero >kit/wide/rows-32-linear.cubin
        echo WORKER=secret >scripts/local.sh"""
    )
    look = f"cd {BY_HAND} && find . -path ./.git -prune -o -printf '%p %m %T@ %s\\n' | sort"
    before = on(HEAD, look)
    patch, other = story.folder / "patches/adopted.patch", story.folder / "other.patch"
    other.write_text("somebody's\n")
    where = {"engine_image_adopt_from": BY_HAND}
    played = play("adopt", extra_vars={**where, "engine_image_adopt_to": str(patch)}).succeeded()
    digest = hashlib.sha256(patch.read_bytes()).hexdigest()
    for words in (
        f"tensorfold_service_recipe_commit: {COMMIT}",
        f"{{path: {patch}, sha256: {digest}}}",
        "1 files that git does not know",
    ):
        assert words in played.output
    assert "secret" not in patch.read_text() + played.output
    both = Together(
        {
            "again": {
                "tags": "adopt",
                "extra_vars": {**where, "engine_image_adopt_to": str(patch)},
            },
            "other": {
                "tags": "adopt",
                "extra_vars": {**where, "engine_image_adopt_to": str(other)},
            },
        }
    )
    both["again"].unchanged()
    assert "is not overwritten" in both["other"].refused().words
    both.close()
    assert other.read_text() == "somebody's\n"
    assert on(HEAD, look) == before
    there = checkouts()
    play("service", extra_vars={"engine_image_patches": declared(patch)}).succeeded()
    (new,) = checkouts() - there
    on(HEAD, f"cd {BY_HAND} && cmp start.sh {new}/start.sh && cmp own.txt {new}/own.txt")
    on(HEAD, f"test ! -e {new}/tools/bench.py && test ! -e {new}/kit && rm -r {BY_HAND}")
