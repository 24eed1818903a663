"""Running the playbooks as an operator does, and reading what happened from Ansible's events."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulated_pair.naming import CHECKOUT

from .machines import HEAD

INVENTORY = CHECKOUT / "inventory" / "simulated"
# A plain run from empty caches takes a third of it where nothing else runs.
PLAY_SECONDS = 600
SWITCH_TASK = "Switch the pair"

# With these words a machine refers to what the other one has said.
_OF_THE_OTHER = ("see the message of", "see its message above")

_PROGRAM = Path(sys.executable).with_name("ansible-playbook")
_RUNNER = Path(sys.executable).with_name("ansible-runner")


@dataclass(frozen=True)
class Outcome:
    """What one task did on one host."""

    host: str
    task: str
    kind: str
    result: Mapping[str, Any]

    @property
    def message(self) -> str:
        """The task's words."""
        return str(self.result.get("msg", ""))


@dataclass(frozen=True)
class Played:
    """One finished run of ansible-playbook."""

    code: int
    changed: Mapping[str, int]
    outcomes: tuple[Outcome, ...]
    output: str

    @property
    def failures(self) -> list[Outcome]:
        """Tasks that ended the run on their host."""
        return [one for one in self.outcomes if one.kind in ("failed", "unreachable")]

    @property
    def words(self) -> str:
        """Every failure's message, for a test that looks for a name in them."""
        return " | ".join(one.message for one in self.failures)

    @property
    def changes(self) -> list[str]:
        """The tasks that report a change."""
        return [f"{one.host}: {one.task}" for one in self.outcomes if one.result.get("changed")]

    def result_of(self, task: str, host: str) -> Mapping[str, Any]:
        """The result of the last task whose name ends with `task`."""
        for one in reversed(self.outcomes):
            if one.host == host and one.task.endswith(task):
                return one.result
        raise AssertionError(f"no task {task!r} ran on {host}; the run said:\n{self.output}")

    @property
    def switch(self) -> Mapping[str, Any]:
        """The result of the switch: exit, message, lines, changed."""
        return self.result_of(SWITCH_TASK, HEAD)

    @property
    def table(self) -> str:
        """The status table."""
        return str(self.result_of("Show the table", HEAD)["table"])

    def succeeded(self) -> "Played":
        """Return this run; AssertionError with its output unless it ended well."""
        assert self.code == 0 and not self.failures, f"{self.words}\n{self.output}"
        return self

    def one_sentence(self) -> str:
        """The only message of a refused run, of one host or the same of both, and on one line."""
        said = {
            one.message
            for one in self.failures
            if not any(words in one.message for words in _OF_THE_OTHER)
        }
        assert len(said) == 1, said
        (words,) = said
        assert "\n" not in words and "Traceback" not in words, words
        return words

    def unchanged(self) -> "Played":
        """Return this run; AssertionError unless it ended well and changed nothing."""
        self.succeeded()
        assert not self.changes and set(self.changed.values()) <= {0}, self.changes
        return self

    def refused(self) -> "Played":
        """Return this run; AssertionError unless it failed in words and changed nothing."""
        assert self.code != 0 and self.failures, self.output
        assert not self.changes, self.changes
        return self


class Play:
    """A run in the background; `finish` waits for it.

    ansible-runner is a process of its own: it forks, which a process with threads must not.
    """

    def __init__(
        self,
        *,
        tags: str | None,
        limit: str | None,
        extra_vars: Mapping[str, Any] | None,
        check: bool,
        inventory: Path,
        environment: Mapping[str, str] | None,
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="story-"))
        env = self._folder / "env"
        env.mkdir()
        envvars = {"LC_ALL": "C.UTF-8", **(environment or {})}
        (env / "envvars").write_text(json.dumps(envvars))
        (env / "settings").write_text(json.dumps({"job_timeout": PLAY_SECONDS}))
        if extra_vars:
            (env / "extravars").write_text(json.dumps(extra_vars))
        words = [*(["--tags", tags] if tags else []), *(["--check", "--diff"] if check else [])]
        command = [
            *(str(_RUNNER), "run", str(self._folder), "--playbook", "site.yml", "--quiet"),
            *("--project-dir", str(CHECKOUT), "--inventory", str(inventory), "--ident", _IDENT),
        ]
        if limit:
            command += ["--limit", limit]
        if words:
            command += ["--cmdline", shlex.join(words)]
        self._process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self) -> str:
        """What ansible-playbook has printed so far."""
        stdout = self._folder / "artifacts" / _IDENT / "stdout"
        return stdout.read_text() if stdout.exists() else ""

    def finish(self) -> Played:
        """Wait for the end and return what happened."""
        try:
            said, _ = self._process.communicate(timeout=PLAY_SECONDS + 30)
            artifacts = self._folder / "artifacts" / _IDENT
            assert (artifacts / "rc").exists(), f"ansible-runner did not start the play: {said}"
            status = (artifacts / "status").read_text()
            output = (artifacts / "stdout").read_text()
            assert status in ("successful", "failed"), f"the play ended as {status!r}: {output}"
            files = sorted(
                (artifacts / "job_events").glob("*.json"),
                key=lambda path: int(path.name.split("-")[0]),
            )
            events = [json.loads(path.read_text()) for path in files]
            stats: dict[str, Any] = next(
                (
                    event["event_data"]
                    for event in reversed(events)
                    if event["event"] == "playbook_on_stats"
                ),
                {},
            )
            return Played(
                code=int((artifacts / "rc").read_text()),
                changed=dict(stats.get("changed", {})),
                # A host that did not answer, and whose play went on knowing it, is not "dark".
                outcomes=tuple(_outcomes(events, lost=stats.get("dark", {}))),
                output=output,
            )
        finally:
            if self._process.poll() is None:
                self._process.kill()
            shutil.rmtree(self._folder, ignore_errors=True)


_IDENT = "play"
_KINDS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


def _outcomes(events: Sequence[Mapping[str, Any]], *, lost: Container[str]) -> Iterator[Outcome]:
    for event in events:
        kind = _KINDS.get(event["event"])
        if kind is None:
            continue
        data = event["event_data"]
        if data.get("ignore_errors") or (kind == "unreachable" and data["host"] not in lost):
            kind = "ok"
        yield Outcome(data["host"], data["task"], kind, data.get("res") or {})


def start_play(
    tags: str | None = None,
    *,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    check: bool = False,
    inventory: Path = INVENTORY,
    environment: Mapping[str, str] | None = None,
) -> Play:
    """Start site.yml; `environment` is added to the controller's shell."""
    return Play(
        tags=tags,
        limit=limit,
        extra_vars=extra_vars,
        check=check,
        inventory=inventory,
        environment=environment,
    )


def play(
    tags: str | None = None,
    *,
    limit: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    check: bool = False,
    inventory: Path = INVENTORY,
    environment: Mapping[str, str] | None = None,
) -> Played:
    """Run site.yml to its end."""
    return start_play(
        tags,
        limit=limit,
        extra_vars=extra_vars,
        check=check,
        inventory=inventory,
        environment=environment,
    ).finish()


class Together:
    """Plays that change nothing, some of them at the same time; each is read when it is wanted."""

    def __init__(self, asked: Mapping[str, Mapping[str, Any]], at_once: int = 3) -> None:
        """`asked` holds the arguments of `play` by the name under which the run is read."""
        self._pool = ThreadPoolExecutor(max_workers=at_once)
        self._runs = {name: self._pool.submit(play, **words) for name, words in asked.items()}

    def __getitem__(self, name: str) -> Played:
        return self._runs[name].result()

    def close(self) -> None:
        """Start no more of them, and wait for those that run."""
        self._pool.shutdown(cancel_futures=True)


def ansible_playbook(*words: str) -> tuple[int, str]:
    """Run ansible-playbook with just these words; its exit code and all that it printed."""
    done = subprocess.run(
        [str(_PROGRAM), *words],
        cwd=CHECKOUT,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PLAY_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


class Controller:
    """ansible-playbook as a plain process, for stories in which the controller dies."""

    def __init__(
        self,
        tags: str,
        extra_vars: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = ["-e", json.dumps(extra_vars)] if extra_vars else []
        self._process = subprocess.Popen(
            [str(_PROGRAM), "-i", str(INVENTORY), "site.yml", "--tags", tags, *given],
            cwd=CHECKOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def send(self, number: signal.Signals) -> int:
        """Send a signal to ansible-playbook and all that it started; its exit code."""
        os.killpg(self._process.pid, number)
        return self._process.wait(60)

    def wait(self, seconds: float) -> int:
        """Wait until ansible-playbook has ended; its exit code."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """End it, whatever a failed story left."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
