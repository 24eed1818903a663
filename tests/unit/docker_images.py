"""A program in place of `docker` that keeps images in a file: their layers, and files in them.

Beside what Docker can do it knows `docker make NAME FILE…`, which a test's build calls.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = """\
#!{python}
import hashlib, io, json, os, sys, tarfile
from pathlib import Path

home = Path({home!r})
words = sys.argv[1:]
with (home / "calls.jsonl").open("a") as stream:
    stream.write(json.dumps(words) + chr(10))
store = home / "images.json"
images = json.loads(store.read_text()) if store.exists() else {{}}
fault = (home / "fault").read_text() if (home / "fault").exists() else ""

def fail(text, code=1):
    print(text, file=sys.stderr)
    sys.exit(code)

def keep():
    store.write_text(json.dumps(images))

if fault == "down":
    fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock")
verb = words[0] if words[0] != "image" else " ".join(words[:2])
name = words[-1]
if verb in ("image inspect", "image rm", "save") and name not in images:
    fail(f"Error response from daemon: No such image: {{name}}")
if verb == "image inspect":
    layers = images[name]["layers"]
    print(json.dumps([{{"Id": "sha256:" + "0" * 64, "RepoTags": [name], "Size": 1000, "Os": "linux",
                        "RootFS": {{"Layers": layers}}, "Config": {{}}}}]))
elif verb == "image rm":
    del images[name]
    keep()
elif verb == "image tag":
    images[name] = images[words[-2]]
    keep()
elif verb == "info":
    print(home)
elif verb == "make":
    files = {{}}
    for path in map(Path, words[2:]):
        for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if one.is_file():
                files[str(one.relative_to(path.parent))] = one.read_text()
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    images[words[1]] = {{"layers": ["base", digest], "files": files}}
    keep()
elif verb == "create":
    if name not in images:
        fail(f"Error response from daemon: No such image: {{name}}")
    (home / "containers").mkdir(exist_ok=True)
    number = f"c{{len(list((home / 'containers').iterdir()))}}"
    (home / "containers" / number).write_text(name)
    print(number)
elif verb == "rm":
    (home / "containers" / name).unlink()
elif verb == "ps":
    asked = words[words.index("--filter") + 1]
    users = home / "users.json"
    if asked.startswith("ancestor=") and users.exists():
        print(chr(10).join(json.loads(users.read_text()).get(asked.removeprefix("ancestor="), [])))
elif verb == "cp":
    container, _, folder = words[-2].partition(":")
    files = images[(home / "containers" / container).read_text()]["files"]
    top = folder.strip("/")
    inside = {{path: text for path, text in files.items() if path.startswith(top + "/")}}
    if not inside:
        fail(f"Error response from daemon: Could not find the file {{folder}} in container")
    last = top.rpartition("/")[2]
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        entry = tarfile.TarInfo(last)
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
        for path, text in inside.items():
            entry = tarfile.TarInfo(last + path.removeprefix(top))
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
elif verb == "save":
    if fault == "save":
        fail("no space left on device")
    sys.stdout.write(json.dumps({{name: images[name]}}).ljust({archive}))
elif verb == "load":
    if fault == "load":
        fail("archive/tar: invalid tar header")
    if fault != "load nothing":
        images |= json.loads(Path(name).read_text())
        keep()
else:
    fail(f"nobody expected docker {{words}}", 64)
"""

ARCHIVE_BYTES = 40_000


class Images:
    """One machine's Docker: what it has and what it was asked."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(parents=True)
        program = home / "docker"
        text = _PROGRAM.format(python=sys.executable, home=str(home), archive=ARCHIVE_BYTES)
        program.write_text(text)
        program.chmod(0o755)

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From now on this is the `docker` of the machine that the test runs on."""
        paths = os.environ["PATH"].split(":")
        others = [one for one in paths if not (Path(one) / "images-of-a-test").exists()]
        (self.home / "images-of-a-test").touch()
        monkeypatch.setenv("PATH", ":".join([str(self.home), *others]))

    def put(self, name: str, content: str = "one", files: dict[str, str] | None = None) -> None:
        """An image is there."""
        self._store({**self.all, name: {"layers": ["base", content], "files": files or {}}})

    def used_by(self, name: str, *containers: str) -> None:
        """Containers are made of an image."""
        (self.home / "users.json").write_text(json.dumps({name: list(containers)}))

    def fault(self, what: str) -> None:
        """From now on it misbehaves: down, save, load, load nothing; "" ends it."""
        (self.home / "fault").write_text(what)

    @property
    def all(self) -> dict[str, Any]:
        """Every image by its name."""
        store = self.home / "images.json"
        found: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
        return found

    @property
    def calls(self) -> list[list[str]]:
        """The words of every call."""
        path = self.home / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def containers(self) -> list[str]:
        """Containers that were made and are still there."""
        return sorted(path.name for path in (self.home / "containers").glob("*"))

    def _store(self, images: dict[str, Any]) -> None:
        (self.home / "images.json").write_text(json.dumps(images))
