"""The recipe's checkout on the head: its commit, the declared patches, the kit, and nothing else.

Host side, standard library only. A checkout is made beside its place and renamed, so that it is
whole or absent; what it must look like is noted inside its `.git`. One that is there is compared,
never mended: an edit that somebody made is shown and refused, so that it is not lost.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import engine_kit, paths
from .engine_inputs import without_secret
from .errors import SparkPairError
from .system import Result, Runner, run_plainly

PATCHES = paths.VAR / "patches"
RECORD = ".git/spark-pair.json"
LOCAL_SH = "scripts/local.sh"
SETTINGS = (".env", LOCAL_SH)
"""Files that the recipe reads its settings from and that git does not show, being ignored."""

_SECONDS = 60
_FETCH_SECONDS = 900
_DIFF_LINES = 14
_NAMES = 5
_STRAY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
_PLAIN = (
    *("-c", "core.autocrlf=false"),
    *("-c", "core.fileMode=true"),
    *("-c", "core.quotePath=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "apply.whitespace=nowarn"),
    *("-c", "diff.noprefix=false"),
    *("-c", "diff.mnemonicPrefix=false"),
    *("-c", "advice.detachedHead=false"),
)
"""What somebody's own configuration of git must not decide here."""


class CheckoutError(SparkPairError):
    """A checkout cannot be made or used; the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Patch:
    """One patch of the queue, as a file on this host."""

    name: str
    """What the operator knows it by."""
    sha256: str

    def file(self, folder: Path = PATCHES) -> Path:
        """Where it lies; its name is its content."""
        return folder / f"{self.sha256}.patch"


@dataclass(frozen=True)
class Kit:
    """The kit that a checkout holds."""

    declared: engine_kit.Declared
    folder: str
    """Where its files lie in the checkout."""
    source: Path
    """Where they come from on this host."""


@dataclass(frozen=True)
class Wanted:
    """What a checkout must be made from."""

    path: Path
    url: str
    commit: str
    owner: str
    patches: tuple[Patch, ...] = ()
    kit: Kit | None = None
    patch_folder: Path = PATCHES


@dataclass(frozen=True)
class Changes:
    """What a checkout holds that nobody declared."""

    files: tuple[str, ...] = ()
    """Each with what is wrong with it, for example `start.sh (changed)`."""
    diff: tuple[str, ...] = ()
    """The beginning of the difference, for the reader."""
    tree: str = ""
    strays: tuple[str, ...] = ()
    """Names of the new ones among the files that neither settings nor a kit are read from."""

    def __bool__(self) -> bool:
        return bool(self.files)

    @property
    def only_strays(self) -> bool:
        """Whether there is nothing but files that somebody left there."""
        return bool(self.files) and len(self.files) == len(self.strays)

    @property
    def words(self) -> str:
        """The files, on one line."""
        more = len(self.files) - _NAMES
        return ", ".join(self.files[:_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass
class Git:
    """git in one repository, as the account that owns it (it refuses another account's)."""

    path: Path
    owner: str
    runner: Runner = run_plainly
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, *words: str, seconds: float = _SECONDS) -> Result:
        """Run git with these words; never raises for its failure."""
        fixed = {
            "HOME": pwd.getpwnam(self.owner).pw_dir,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            **self.environment,
        }
        return self.runner(
            [
                *("runuser", "-u", self.owner, "--", "env"),
                *(word for name in _STRAY if name not in fixed for word in ("-u", name)),
                *(f"{name}={value}" for name, value in fixed.items()),
                *("git", *_PLAIN, "-C", str(self.path), *words),
            ],
            seconds,
        )

    def out(self, *words: str) -> str:
        """What git prints, without the last newline. Raises CheckoutError when it fails."""
        done = self.run(*words)
        if not done.ok:
            raise CheckoutError(f"'git {words[0]}' failed in {self.path}: {done.last_words()}")
        return done.out.removesuffix("\n")

    def names(self, *words: str) -> list[str]:
        """Names that git prints with -z."""
        return [name for name in self.out(*words).split("\0") if name]


def head_commit(checkout: Path, owner: str, runner: Runner = run_plainly) -> str | None:
    """Commit that a checkout stands at, or None when there is no usable checkout."""
    if not (checkout / ".git").exists():
        return None
    done = Git(checkout, owner, runner).run("rev-parse", "HEAD")
    return done.out.strip() if done.ok else None


def check(wanted: Wanted, runner: Runner = run_plainly) -> bool:
    """Whether the checkout is there, as declared. Raises CheckoutError when it was changed."""
    if not os.path.lexists(wanted.path):
        return False
    if problem := refusal(wanted.path, wanted.owner, runner):
        raise CheckoutError(problem)
    record = _record(Git(wanted.path, wanted.owner, runner))
    if record["commit"] != wanted.commit or record["patches"] != [
        patch.sha256 for patch in wanted.patches
    ]:
        raise CheckoutError(
            f"{wanted.path} was made from another commit or other patches than its name says: "
            f"put it aside (sudo mv {wanted.path} {wanted.path}.aside) and run again"
        )
    return True


def refusal(checkout: Path, owner: str, runner: Runner = run_plainly) -> str | None:
    """Why a checkout cannot be used, in words that tell how to keep what was changed, or None."""
    found = changes(checkout, owner, runner)
    if not found:
        return None
    git = f"git -C {checkout}"
    strays = ""
    if found.only_strays:
        strays = f"If they are of no use there, move them out of {checkout} and run again. "
    return "\n".join(
        [
            f"{checkout} holds what was not declared: {found.words}. Nothing was overwritten. "
            f"{strays}To keep it, as {owner}: '{git} add --intent-to-add . && {git} diff --binary "
            f"{found.tree} > ~/my.patch', and declare that file at the end of engine_image_patches."
            f" Then put the checkout aside (sudo mv {checkout} {checkout}.aside) and run again",
            *(f"  {line}" for line in found.diff),
        ]
    )


def changes(
    checkout: Path, owner: str, runner: Runner = run_plainly, own: Collection[str] = ()
) -> Changes:
    """What differs from what was noted when the checkout was made, but for files named `own`.

    Raises CheckoutError when that cannot be told.
    """
    git = Git(checkout, owner, runner)
    record = _record(git)
    tree = str(record["tree"])
    files: list[str] = []
    if (commit := git.out("rev-parse", "HEAD")) != record["commit"]:
        files.append(f"another commit ({commit[:12]})")
    compare = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color")
    changed = [name for name in git.names(*compare, "--name-only", "-z", tree) if name not in own]
    kit: Mapping[str, str] = record["kit"]
    files += [f"{name} (changed)" for name in changed]
    others = {*git.names("ls-files", "--others", "--exclude-standard", "-z")}
    tracked = {*git.names("ls-tree", "-r", "-z", "--name-only", tree)}
    others |= {name for name in SETTINGS if name not in tracked and (checkout / name).exists()}
    new = sorted(others - {*own, *kit})
    files += [f"{name} (new)" for name in new]
    files += [f"{name} (not as in the kit)" for name in sorted(_wrong(checkout, kit))]
    shown: list[str] = []
    if changed:
        shown = git.out(*compare, tree, "--", *changed[:_NAMES]).splitlines()
    strays = tuple(name for name in new if name not in SETTINGS and not _beside(name, kit))
    return Changes(tuple(files), tuple(shown[:_DIFF_LINES]), tree, strays)


def _beside(name: str, kit: Iterable[str]) -> bool:
    """Whether a file lies in a folder of the kit, which goes into an image as a whole."""
    folders = {one.rpartition("/")[0] for one in kit}
    return any(folder and name.startswith(f"{folder}/") for folder in folders)


def make(wanted: Wanted, runner: Runner = run_plainly) -> None:
    """Make the checkout. Raises CheckoutError or KitError, leaving nothing behind."""
    if os.path.lexists(wanted.path):
        raise CheckoutError(f"{wanted.path} is there already")
    account = pwd.getpwnam(wanted.owner)
    wanted.path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    partial = wanted.path.with_name(f".{wanted.path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o755)
    try:
        os.chown(partial, account.pw_uid, account.pw_gid)
        git = Git(partial, wanted.owner, runner)
        _fetch(git, wanted)
        for patch in wanted.patches:
            _apply(git, patch, patch.file(wanted.patch_folder))
        tree = git.out("write-tree")
        kit = _place_kit(git, wanted.kit, account) if wanted.kit else {}
        _exclude(partial, [*kit, LOCAL_SH])
        record = {
            "commit": wanted.commit,
            "tree": tree,
            "patches": [patch.sha256 for patch in wanted.patches],
            "kit": kit,
        }
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="ascii")
        if found := changes(partial, wanted.owner, runner):
            raise CheckoutError(
                f"the checkout of {wanted.commit[:12]} does not come out as declared: {found.words}"
            )
        os.sync()
        partial.rename(wanted.path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fetch(git: Git, wanted: Wanted) -> None:
    """Bring the commit in and check it out."""
    steps: list[tuple[str, ...]] = [
        ("init", "--quiet"),
        ("remote", "add", "origin", wanted.url),
        ("fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*"),
    ]
    for words in steps:
        done = git.run(*words, seconds=_FETCH_SECONDS)
        if not done.ok:
            raise _not_fetched(wanted, done)
    if not git.run("cat-file", "-e", f"{wanted.commit}^{{commit}}").ok:
        # On no branch and no tag, as the head of a pull request is.
        done = git.run("fetch", "--quiet", "origin", wanted.commit, seconds=_FETCH_SECONDS)
        if not done.ok:
            raise _not_fetched(wanted, done)
    done = git.run("checkout", "--quiet", "--detach", wanted.commit)
    if done.ok and (git.path / ".gitmodules").exists():
        done = git.run("submodule", "update", "--init", "--recursive", seconds=_FETCH_SECONDS)
    if not done.ok:
        raise _not_fetched(wanted, done)
    # Everybody on the machine can read what a checkout notes.
    git.out("remote", "set-url", "origin", without_secret(wanted.url))


def _not_fetched(wanted: Wanted, done: Result) -> CheckoutError:
    return CheckoutError(
        f"cannot check out {without_secret(wanted.url)} at {wanted.commit}: "
        f"{without_secret(done.last_words())}. Check tensorfold_service_recipe_url and "
        "tensorfold_service_recipe_commit"
    )


def _apply(git: Git, patch: Patch, file: Path) -> None:
    """Apply one patch to the working tree and the index, wholly or not at all."""
    if not file.is_file():
        raise CheckoutError(f"the patch {patch.name} is not in {file}: run again")
    if (found := engine_kit.digest(file)) != patch.sha256:
        raise CheckoutError(
            f"the patch {patch.name} in {file} has sha256 {found}: remove that file (sudo rm "
            f"{file}) and run again"
        )
    done = git.run("apply", "--index", str(file))
    if not done.ok:
        said = [line.removeprefix("error: ") for line in done.err.splitlines() if line.strip()]
        where = "; ".join(dict.fromkeys(_hunk(line, file) for line in said)) or done.last_words()
        raise CheckoutError(
            f"the patch {patch.name} does not apply to {git.out('rev-parse', 'HEAD')[:12]} with "
            f"the patches before it: {where}. Correct it, or take it out of engine_image_patches"
        )


def _hunk(line: str, file: Path) -> str:
    """What git complains about, with the hunk's own heading where it names one."""
    match = re.fullmatch(r"patch failed: (.+):(\d+)", line)
    if match is None:
        return line
    name, number = match.groups()
    inside = False
    for text in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if text.startswith("+++ "):
            inside = text.removeprefix("+++ ").split("\t")[0].endswith(f"/{name}")
        elif inside and text.startswith(f"@@ -{number},"):
            return f"{name}, hunk {text[: text.find('@@', 2) + 2]}"
    return f"{name}, the hunk at line {number}"


def _place_kit(git: Git, kit: Kit, account: pwd.struct_passwd) -> dict[str, str]:
    """Copy the kit's files in; path in the checkout -> sha256 of all that are not the recipe's."""
    files = engine_kit.prove(kit.source, kit.declared)
    tracked = {*git.names("ls-files", "-z")}
    placed: dict[str, str] = {}
    for name, sha256 in {**files, engine_kit.MANIFEST: kit.declared.manifest_sha256}.items():
        path = f"{kit.folder}/{name}"
        target = git.path / path
        if path in tracked:
            if name != engine_kit.MANIFEST and engine_kit.digest(target) != sha256:
                raise CheckoutError(
                    f"{path} is a file of the recipe (with its patches), and the kit has another "
                    "one of that name: choose another folder in engine_image_kit"
                )
            continue
        _make_folders(target.parent, git.path, account)
        shutil.copyfile(kit.source / name, target)
        target.chmod(0o644)
        os.chown(target, account.pw_uid, account.pw_gid)
        placed[path] = sha256
    return placed


def _make_folders(folder: Path, root: Path, account: pwd.struct_passwd) -> None:
    for path in reversed([folder, *folder.parents]):
        if root in path.parents and not path.is_dir():
            path.mkdir(mode=0o755)
            os.chown(path, account.pw_uid, account.pw_gid)


def _exclude(checkout: Path, names: Sequence[str]) -> None:
    """Keep our own files out of `git status`, without a change of the recipe's .gitignore."""
    file = checkout / ".git/info/exclude"
    file.parent.mkdir(exist_ok=True)
    lines = [
        "# Put here by spark-pair, and by no patch:",
        *(f"/{name}" for name in names),
        "# Left by a run of the recipe's tools:",
        "__pycache__/",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="ascii")


def _wrong(checkout: Path, kit: Mapping[str, str]) -> list[str]:
    return [
        name
        for name, sha256 in kit.items()
        if not (checkout / name).is_file() or engine_kit.digest(checkout / name) != sha256
    ]


def _record(git: Git) -> dict[str, Any]:
    """What the checkout was made from; without a note of it, its commit and nothing else."""
    file = git.path / RECORD
    if not file.exists():
        commit = git.out("rev-parse", "HEAD")
        tree = git.out("rev-parse", "HEAD^{tree}")
        return {"commit": commit, "tree": tree, "patches": [], "kit": {}}
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="ascii"))
        if all(key in found for key in ("commit", "tree", "patches", "kit")):
            return found
    except (OSError, ValueError):
        pass
    raise CheckoutError(f"{file} cannot be read: what {git.path} must be is not known")
