"""A program in place of `docker` that runs a container's command on this host.

Folders under their names in the container are translated to the host's. It notes every call, keeps
a list of the containers that are there, and ends one when it is removed, as Docker does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

_PROGRAM = """\
#!{python}
import json, os, signal, subprocess, sys, time
from pathlib import Path

home = Path({home!r})
words = sys.argv[1:]
with (home / "calls.jsonl").open("a") as stream:
    stream.write(json.dumps(words) + chr(10))
there = home / "containers"
there.mkdir(exist_ok=True)
if words[0] == "rm":
    place = there / words[-1]
    if not place.exists():
        print("Error response from daemon: No such container:", words[-1], file=sys.stderr)
        sys.exit(1)
    process = place.read_text()
    place.unlink()
    if process:
        os.killpg(int(process), signal.SIGKILL)
    print(words[-1])
    sys.exit(0)
assert words[0] == "run", words
name, mounts, at = "", [], 1
while words[at].startswith("--"):
    if words[at] == "--rm":
        at += 1
        continue
    value = words[at + 1]
    if words[at] == "--name":
        name = value
    if words[at] == "--volume":
        source, target, _ = value.split(":")
        mounts.append((target, source))
    at += 2
image, command = words[at], words[at + 1:]
if image != "engine:test":
    print("docker: Error response from daemon: No such image:", image, file=sys.stderr)
    sys.exit(125)

def here(word):
    for target, source in sorted(mounts, key=lambda one: -len(one[0])):
        if word == target or word.startswith(target + "/"):
            return source + word[len(target):]
    return word

process = subprocess.Popen([here(word) for word in command], start_new_session=True)
(there / name).write_text(str(process.pid))
code = process.wait()
(there / name).unlink(missing_ok=True)
sys.exit(code if code >= 0 else 137)
"""
IMAGE = "engine:test"


class DockerProgram:
    """Where it is and what it was asked."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        home.mkdir(parents=True)
        program = home / "docker"
        program.write_text(_PROGRAM.format(python=sys.executable, home=str(home)))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")

    @property
    def calls(self) -> list[list[str]]:
        """The words of every call."""
        lines = (self.home / "calls.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def runs(self) -> list[list[str]]:
        """The words of every container that was run."""
        return [words for words in self.calls if words[0] == "run"]

    @property
    def there(self) -> list[str]:
        """Containers that are there now."""
        return sorted(path.name for path in (self.home / "containers").glob("*"))

    def leave(self, name: str) -> None:
        """A container of that name lies there from an earlier run."""
        (self.home / "containers").mkdir(exist_ok=True)
        (self.home / "containers" / name).write_text("")
