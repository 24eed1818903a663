"""Print one preflight table per pair and fail when something in it failed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import preflight  # noqa: E402 - needs the path above

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `looked` name the registered results of the gate and of the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        hostvars = variables["hostvars"]
        gate = variables[self._task.args["gate"]]
        # Without a pair in the inventory this host can only speak for itself.
        pair: dict[Any, str] = dict(gate["pair"]) or {"head": host}
        checks = {
            name: preflight.judged(
                gate["absences"].get(name) if gate["pair"] else None,
                *self._looked(hostvars[name], str(self._task.args["looked"])),
            )
            for name in pair.values()
        }
        inputs = [str(words) for name in pair.values() for words in self._inputs(hostvars[name])]
        if not gate["pair"]:
            inputs = [*map(str, gate["absences"].values()), *inputs]
        inputs = list(dict.fromkeys(inputs))
        problems = preflight.problems(checks, inputs)
        table = preflight.table(pair, checks, inputs)
        result["changed"] = False

        # Every host of the pair comes to the same table; the first one in the run shows it.
        in_run = [name for name in pair.values() if name in variables["ansible_play_hosts"]]
        if in_run and host == in_run[0]:
            display.display(table)
        if problems:
            result.update(failed=True, msg=f"{problems[0]}{_more(len(problems) - 1)}")
        else:
            result["table"] = table  # a failed result would print it a second time
        return result

    def _inputs(self, variables: Mapping[str, Any]) -> list[Any]:
        """What the gate found wrong with another host's variables, if it ran there."""
        register = self._task.args["gate"]
        return list(variables[register]["input_problems"]) if register in variables else []

    def _looked(
        self, variables: Mapping[str, Any], register: str
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        if register not in variables:
            return None, None
        asked = dict(variables[register])
        return asked, asked.get("checks")


def _more(count: int) -> str:
    return f" (and {count} more in the table above)" if count else ""
