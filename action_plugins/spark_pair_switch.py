"""Start a switch on the head, follow it line by line, and tell how it ended.

The switch itself runs as a unit on the head. Nothing here is needed for it to end well: a lost
connection is waited for, and a killed playbook loses only the view.
"""

from __future__ import annotations

import getpass
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import description as pair_description  # noqa: E402 - needs the path above
from spark_pair import paths, plan_text  # noqa: E402
from spark_pair.errors import SparkPairError  # noqa: E402

POLL_SECONDS = 1.0
LOST_CONNECTION_SECONDS = 600.0

_MEANING = {
    2: "the switch was not started",
    10: "refused, nothing was touched",
    11: "gave up, the old server serves",
    20: "failed, the former server serves again",
    30: "NOBODY SERVES",
    75: "another switch is running",
}

display = Display()


class SwitchError(Exception):
    """The switch cannot be started or followed; the message is for the operator."""


class ActionModule(ActionBase):
    """Acts on the head; on the worker it has nothing to do."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"server", "drain", "hold", "respect_hold", "reason", "description"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return changed, exit, message and every line of the switch."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        self._host = str(variables["inventory_hostname"])
        self._lines: list[str] = []
        result["changed"] = False
        try:
            result.update(self._switch(variables))
        except (SwitchError, SparkPairError, AnsibleConnectionFailure) as error:
            result.update(failed=True, msg=str(error))
        if not result.get("failed"):
            result["lines"] = self._lines  # a failed result would print them a second time
        return result

    def _switch(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        args = self._task.args
        here = self._pair_json()
        if (here or {}).get("me", variables.get("pair_role")) != "head":
            return {"skipped": True, "msg": "the switch runs on the head"}
        wanted = dict(args.get("description") or {})
        if here is None:
            return self._bare(wanted, str(args["server"]))
        server = here.get("fallback") if args["server"] == "fallback" else args["server"]
        if args["server"] == "fallback" and server in (None, pair_description.NONE):
            raise SwitchError(
                f"this pair has no fallback to go back to ({paths.DESCRIPTION} on {self._host} "
                "says so): name one in model_server_fallback and run --tags service first"
            )
        self._pair = str(here.get("pair", self._host))
        if wanted and wanted != here and not self._task.check_mode:
            raise SwitchError(
                f"{paths.DESCRIPTION} on {self._host} is not what the variables say now "
                f"({_listed(wanted, here)}): run with --tags service,cutover"
            )
        if self._task.check_mode:
            return self._plan(str(server), args, here, wanted or here)
        answer = self._start(str(server), args)
        return self._ended(answer) if answer.get("state") == "done" else self._follow(answer)

    def _pair_json(self) -> dict[str, Any] | None:
        """The description on the host, or None on a bare one."""
        code, out, err = self._command(["cat", str(paths.DESCRIPTION)])
        if code != 0:
            if "No such file" in err or "No such file" in out:
                return None
            raise SwitchError(
                f"{paths.DESCRIPTION} on {self._host} cannot be read: {_last(out, err)}"
            )
        try:
            data = json.loads(out)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise SwitchError(
                f"{paths.DESCRIPTION} on {self._host} is damaged: --tags service writes it anew"
            )
        return data

    def _bare(self, wanted: dict[str, Any], server: str) -> dict[str, Any]:
        if not self._task.check_mode:
            raise SwitchError(
                f"{self._host} is not set up yet: {paths.DESCRIPTION} does not exist there. "
                "Run site.yml without tags, or with --tags tools,service, first"
            )
        if not wanted:
            self._say(f"{self._host} is not set up yet: there is nothing to switch")
            return {"message": "nothing to switch on a bare pair"}
        parsed = pair_description.parse(wanted)
        self._pair = parsed.pair
        self._say(f"would switch to {server}; nobody has looked yet at what runs:")
        for line in plan_text.switch_lines(parsed, server):
            self._say(f"  {line}")
        return {"changed": True, "message": f"would switch to {server}"}

    def _plan(
        self, server: str, args: Mapping[str, Any], here: dict[str, Any], wanted: dict[str, Any]
    ) -> dict[str, Any]:
        """Check mode on a pair that is set up: what the tool itself would do."""
        done, answer = self._tool(["switch", server, *_options(args), "--dry-run", "--json"])
        if answer is None:
            raise SwitchError(
                f"the plan could not be made on {self._host}: {_last(done[1], done[2])}"
            )
        lines = [str(line) for line in answer.get("lines", [])]
        for line in lines:
            self._say(line)
        message = str(answer.get("message", ""))
        if message and message not in lines:
            self._say(message)
        would = bool(answer.get("changed"))
        if wanted != here:
            # The stage "service" of this run would have written another description first.
            self._say(f"that is without what --tags service would change: {_listed(wanted, here)}")
            if _generation(wanted, server) != _generation(here, server) and not would:
                would = True
                verdicts = dict(answer.get("verdicts") or {})
                running = {name for name, state in verdicts.items() if state != "down"}
                self._say(f"with it, {server} would be restarted in the new configuration:")
                parsed = pair_description.parse(wanted)
                for line in plan_text.switch_lines(parsed, server, running=running):
                    self._say(f"  {line}")
        return {
            "changed": would,
            "exit": answer.get("exit"),
            "message": message,
            "verdicts": answer.get("verdicts"),
        }

    def _start(self, server: str, args: Mapping[str, Any]) -> dict[str, Any]:
        words = ["switch", server, *_options(args), "--no-follow", "--json"]
        words += ["--asked-by", f"{getpass.getuser()} on the controller"]
        done, answer = self._tool([*words, "--reason", str(args["reason"])])
        if answer is None or not {"id", "state"} & answer.keys():
            code, out, err = done
            said = str((answer or {}).get("message") or _last(out, err))
            raise SwitchError(f"{_MEANING.get(code, f'exit code {code}')}: {said}")
        return answer

    def _follow(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Print lines as they come until the switch has ended."""
        job, after, lost_since = str(answer["id"]), 0, None
        words = ["follow", job, "--json", "--after"]
        while True:
            try:
                done, news = self._tool([*words, str(after)])
            except AnsibleConnectionFailure as error:
                done, news = (255, "", str(error)), None
            if news is None:
                now = time.monotonic()
                if lost_since is None:
                    lost_since = now
                    self._say(f"{self._host} does not answer; the switch goes on there, waiting")
                if now - lost_since > LOST_CONNECTION_SECONDS:
                    raise SwitchError(
                        f"{self._host} has not answered for {LOST_CONNECTION_SECONDS / 60:g} "
                        f"minutes ({_last(done[1], done[2])}). The switch goes on by itself "
                        "there; see 'spark-pair status' on either machine"
                    )
                time.sleep(POLL_SECONDS)
                continue
            if lost_since is not None:
                lost_since = None
                self._say(f"{self._host} answers again")
            for line in news.get("lines", []):
                self._say(str(line))
            after = int(news.get("next", after))
            if news.get("state") != "running":
                return self._ended(news)
            time.sleep(POLL_SECONDS)

    def _ended(self, news: Mapping[str, Any]) -> dict[str, Any]:
        code, message = news.get("exit"), str(news.get("message") or "")
        if news.get("state") == "lost" or code is None:
            raise SwitchError(
                f"the switch was cut off on {self._host}: {message or 'no more is known'}. "
                "Look at 'spark-pair status' there; 'spark-pair resume' finishes or undoes it"
            )
        ended = {"changed": bool(news.get("changed")), "exit": code}
        if code != 0:
            ended.update(failed=True, msg=f"{_MEANING.get(code, f'exit code {code}')}: {message}")
            return ended
        ended["message"] = message
        if message and not (self._lines and self._lines[-1].endswith(message)):
            self._say(message)
        return ended

    def _tool(self, words: Sequence[str]) -> tuple[tuple[int, str, str], dict[str, Any] | None]:
        """Run the tool; its answer is the last line that is a JSON object, whatever sudo said."""
        done = self._command([paths.TOOL, *words])
        code, out, err = done
        if code == 127 or (code == 126 and "No such file" in err):
            raise SwitchError(
                f"the spark-pair tool is not installed on {self._host}: run with --tags tools first"
            )
        for line in reversed(out.strip().splitlines()):
            if line.startswith("{"):
                try:
                    answer = json.loads(line)
                except ValueError:
                    break
                return done, answer
        return done, None

    def _command(self, argv: Sequence[str]) -> tuple[int, str, str]:
        done = self._low_level_execute_command(shlex.join(argv))
        return int(done["rc"]), str(done["stdout"]), str(done["stderr"])

    def _say(self, line: str) -> None:
        self._lines.append(line)
        display.display(f"  [{getattr(self, '_pair', self._host)}] {line}")


def _options(args: Mapping[str, Any]) -> list[str]:
    words = ["--drain", str(args.get("drain") or "keep")]
    if args.get("hold"):
        words.append("--hold")
    if args.get("respect_hold"):
        words.append("--respect-hold")
    return words


def _generation(described: Mapping[str, Any], server: str) -> Any:
    return (described.get("servers", {}).get(server) or {}).get("generation")


def _listed(wanted: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Where two descriptions differ: top-level keys, policies and servers by name."""
    found: list[str] = []
    for key in sorted({*wanted, *present}):
        mine, theirs = wanted.get(key), present.get(key)
        if mine == theirs:
            continue
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            inner = [
                name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)
            ]
            found += [f"{key}.{name}" for name in inner]
        else:
            found.append(key)
    return ", ".join(found)


def _last(*texts: str) -> str:
    """Last words of a program; with a terminal they share one stream, and ssh adds its own."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    words = [
        line for line in lines if not line.startswith(("Shared connection to ", "Connection to "))
    ]
    return words[-1].removeprefix("spark-pair: ")[:500] if words else "no output"
