"""A checkout of the recipe that somebody changed by hand, turned into one patch of its commit.

Host side, standard library only; reads the checkout and changes nothing in it: what git has to
write goes to a folder of its own. Small text files that git does not know become part of the patch;
large and binary ones are named as a kit.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import engine_kit
from .engine_checkout import SETTINGS, CheckoutError, Git
from .engine_inputs import without_secret
from .system import Runner, run_plainly

_LARGE_BYTES = 256 << 10
_SNIFFED_BYTES = 8000
_NAMES = 20
_SECRET = re.compile(r"(^|/)(\.env[^/]*|local\.sh[^/]*)$|token(?!i[sz])|secret")
"""Names (in small letters) of files that settings and tokens are kept in."""
_ENGINE_WORDS = ("dsv41", "tensorfold")


@dataclass(frozen=True)
class KitFound:
    """Files beside the recipe's that no patch should carry."""

    folder: str
    """Their folder in the checkout; "" when they lie in several."""
    manifest: str
    manifest_sha256: str
    count: int
    size: int
    """Bytes of them all."""


@dataclass(frozen=True)
class Found:
    """A checkout that was made by hand."""

    path: str
    url: str
    commit: str
    """The newest commit of it that its repository has; what comes after it is in the patch."""
    own_commits: int
    """Commits after that one, which only this machine has."""
    patch: bytes
    sha256: str
    files: tuple[str, ...]
    """Names of the files that the patch changes."""
    taken_in: tuple[str, ...]
    """Those of them that git does not know."""
    left_out: tuple[str, ...]
    """What git does not know and nothing was made of, each with the reason."""
    kit: KitFound | None
    image: str
    """Image that the engine's container runs, "" when none does."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data but for the patch."""
        lists = {name: list(getattr(self, name)) for name in ("files", "taken_in", "left_out")}
        return {**asdict(self), "patch": None, **lists}


def look(path: Path, runner: Runner = run_plainly) -> Found | None:
    """What a checkout holds; None where there is none, or a link. Raises CheckoutError."""
    if path.is_symlink() or not path.is_dir():
        return None
    if not (path / ".git").exists():
        raise CheckoutError(
            f"{path} is no checkout of git, so it cannot be told what was changed in it: clone the "
            "recipe at your commit beside it and compare both"
        )
    owner = pwd.getpwuid(path.stat().st_uid).pw_name
    git = Git(path, owner, runner)
    commit, own_commits = _published(git)
    unknown = git.names("ls-files", "--others", "--exclude-standard", "-z")
    left_out = {name: why for name in unknown if (why := _why_left_out(name))}
    others = [name for name in unknown if name not in left_out]
    heavy = [name for name in others if _heavy(path / name)]
    kit = _kit(path, heavy)
    list_of_kit = f"{kit.folder}/{engine_kit.MANIFEST}" if kit and kit.folder else ""
    light = [name for name in others if name not in heavy and name != list_of_kit]
    patch, files = _patch(git, commit, light)
    url = git.run("remote", "get-url", "origin")
    return Found(
        path=str(path),
        url=without_secret(url.out.strip()) if url.ok else "",
        commit=commit,
        own_commits=own_commits,
        patch=patch,
        sha256=hashlib.sha256(patch).hexdigest(),
        files=tuple(files),
        taken_in=tuple(name for name in light if name in files),
        left_out=tuple(f"{name} ({why})" for name, why in left_out.items()),
        kit=kit,
        image=running_image(runner),
    )


def lines(found: Mapping[str, Any], file: str, manifest: str) -> list[str]:
    """What to put into the variables, for a checkout as `as_dict` tells it; empty if it is clean.

    `file` is where the patch was written, `manifest` where the kit's list was.
    """
    said = []
    if found["url"]:
        said.append(f"tensorfold_service_recipe_url: {found['url']}")
    said.append(f"tensorfold_service_recipe_commit: {found['commit']}")
    if found["files"]:
        said += [
            "engine_image_patches:",
            f"  - {{path: {file}, sha256: {found['sha256']}}}",
        ]
    if found["taken_in"]:
        said.append(
            f"# Taken into the patch although git does not know them: {_some(found['taken_in'])}. "
            "See that no token is in them."
        )
    if found["left_out"]:
        said.append(f"# Left out: {_some(found['left_out'])}.")
    if kit := found["kit"]:
        folder = kit["folder"] or "…"
        said += [
            f"# {kit['count']} files that git does not know and no patch should carry, "
            f"{kit['size']} bytes; their list is in {manifest}.",
            f"# Bring them here with rsync --files-from=<(cut -c 67- {manifest}) "
            f"HOST:{found['path']}/{kit['folder']}/ KIT/, and the list as KIT/MANIFEST.",
            f"engine_image_kit: {{path: KIT, manifest_sha256: {kit['manifest_sha256']}, "
            f"count: {kit['count']}, folder: {folder}}}",
        ]
    if found["image"]:
        said.append(f"tensorfold_service_image: {found['image']}")
    return said


def keep(path: Path, data: bytes) -> None:
    """Write a file as a whole and for nobody else: a change by hand may hold what is a secret."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    fresh.rename(path)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")


def _why_left_out(name: str) -> str:
    """Why nothing is made of a file that git does not know; "" when it is taken in."""
    if name.endswith("/"):
        return "a repository of its own"
    if name in SETTINGS or (_SECRET.search(name.lower()) and not name.endswith(".example")):
        return "may hold a token"
    return ""


def running_image(runner: Runner = run_plainly) -> str:
    """Image of the container that looks like a rank of the engine; "" when none runs."""
    listed = runner(["docker", "ps", "--no-trunc", "--format", "{{.Names}}\t{{.Image}}"], 30)
    for line in listed.out.splitlines() if listed.ok else []:
        name, _, image = line.partition("\t")
        if any(word in f"{name} {image}" for word in _ENGINE_WORDS):
            return "" if image.startswith("sha256:") else image
    return ""


def _published(git: Git) -> tuple[str, int]:
    """The newest commit that a branch of the repository has, and how many are on top of it."""
    head = git.out("rev-parse", "HEAD")
    best: tuple[int, str] | None = None
    for ref in git.out("for-each-ref", "--format=%(objectname)", "refs/remotes").split():
        base = git.run("merge-base", head, ref)
        if base.ok:
            commit = base.out.strip()
            ahead = int(git.out("rev-list", "--count", f"{commit}..{head}"))
            if best is None or ahead < best[0]:
                best = (ahead, commit)
    return (best[1], best[0]) if best else (head, 0)


def _heavy(path: Path) -> bool:
    """Whether a file belongs into a kit rather than into a patch."""
    if path.is_symlink():
        return False
    with path.open("rb") as file:
        return path.stat().st_size > _LARGE_BYTES or b"\0" in file.read(_SNIFFED_BYTES)


def _kit(checkout: Path, names: Sequence[str]) -> KitFound | None:
    if not names:
        return None
    tops = {name.partition("/")[0] for name in names}
    folder = tops.pop() if len(tops) == 1 and all("/" in name for name in names) else ""
    start = len(folder) + 1 if folder else 0
    files = {name[start:]: engine_kit.digest(checkout / name) for name in names}
    text = engine_kit.manifest_text(files)
    return KitFound(
        folder=folder,
        manifest=text,
        manifest_sha256=hashlib.sha256(text.encode()).hexdigest(),
        count=len(files),
        size=sum((checkout / name).stat().st_size for name in names),
    )


def _patch(git: Git, commit: str, light: Sequence[str]) -> tuple[bytes, list[str]]:
    """The patch from `commit` to the files as they are, and the files that it changes."""
    known = [name for name in git.names("ls-files", "-z") if os.path.lexists(git.path / name)]
    with _aside(git) as (folder, apart):
        index = Git(git.path, git.owner, git.runner, apart)
        index.out("read-tree", commit)
        index.out("add", "--update", ".")
        names = folder / "names"
        names.write_bytes(b"".join(os.fsencode(name) + b"\0" for name in [*known, *light]))
        if known or light:
            index.out(
                *("--literal-pathspecs", "add", "--force"),
                *(f"--pathspec-from-file={names}", "--pathspec-file-nul"),
            )
        tree = index.out("write-tree")
        compare = ("diff", "--cached", "--no-ext-diff", "--no-textconv", "--no-renames")
        files = index.names(*compare, "--name-only", "-z", commit)
        if not files:
            return b"", []
        target = folder / "patch"
        index.out(*compare, "--no-color", "--binary", f"--output={target}", commit)
        again = Git(git.path, git.owner, git.runner, {**apart, "GIT_INDEX_FILE": f"{folder}/again"})
        again.out("read-tree", commit)
        again.out("apply", "--cached", str(target))
        if again.out("write-tree") != tree:
            raise CheckoutError(f"the patch of {git.path} does not give what lies there")
        return target.read_bytes(), files


@contextmanager
def _aside(git: Git) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder of the owner's for all that git writes, and the variables that lead it there."""
    account = pwd.getpwnam(git.owner)
    objects = Path(git.out("rev-parse", "--git-path", "objects"))
    folder = Path(tempfile.mkdtemp(prefix="spark-pair-adopt-"))
    try:
        for path in (folder, folder / "objects"):
            path.mkdir(exist_ok=True)
            os.chown(path, account.pw_uid, account.pw_gid)
        yield (
            folder,
            {
                "GIT_INDEX_FILE": str(folder / "index"),
                "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
                "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git.path / objects),
            },
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
