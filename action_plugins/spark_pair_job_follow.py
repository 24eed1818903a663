"""Follow a job on its host with a live line, and tell how it ended.

The job is a unit there and needs nothing of this: Ctrl-C or a killed playbook loses
only the view. Run again, the play attaches to it.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import paths  # noqa: E402 - needs the path above
from spark_pair.jobs import following  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Looks at the job again and again; changes nothing."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"name", "words", "started"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return message and data of the job; failed when it was not done.

        `words` say what the job is for; `started` is what spark_pair_job returned.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        args = self._task.args
        self._host = str((task_vars or {})["inventory_hostname"])
        self._name, words = str(args["name"]), str(args["words"])
        if self._task.check_mode:
            result["message"] = f"would {words}"
            self._say(result["message"])
            return result
        follower = following.Follower(
            self._host,
            self._name,
            words,
            self._look,
            self._say,
            live=sys.__stdout__ is not None and sys.__stdout__.isatty(),
        )
        started = dict(args["started"])
        try:
            if started["attached"]:
                follower.attached(same=bool(started["same"]))
            view = follower.follow()
        except following.FollowError as error:
            result.update(failed=True, msg=str(error))
            return result
        result["message"] = str(view.get("message") or "")
        result["data"] = dict((view.get("result") or {}).get("data") or {})
        return result

    def _look(self) -> tuple[following.View | None, str]:
        """The job as its host tells it, or None and why not."""
        words = [paths.TOOL, "jobs", "look", self._name, "--json"]
        try:
            done = self._low_level_execute_command(shlex.join(words))
        except AnsibleConnectionFailure as error:
            return None, _last(str(error))
        code, out, err = int(done["rc"]), str(done["stdout"]), str(done["stderr"])
        if code == 127 or (code == 126 and "No such file" in err):
            raise following.FollowError(
                f"the spark-pair tool is not installed on {self._host}: run --tags tools first"
            )
        return following.view_in(out), _last(out, err)

    def _say(self, line: str) -> None:
        display.display(f"  {self._host}: {line}")


def _last(*texts: str) -> str:
    """Last words of a program, without what ssh adds."""
    lines = [line.strip() for text in texts for line in text.splitlines()]
    said = [
        line for line in lines if line and not line.startswith(("Shared conn", "Connection to"))
    ]
    return said[-1].removeprefix("spark-pair: ")[:300] if said else "no output"
