"""Print one status table per pair. Never fails because of what it shows."""

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

from spark_pair import description as descriptions  # noqa: E402 - needs the path above
from spark_pair import report  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "seen"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `seen` name the registered results of the gate and of the observation."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        gate = variables[self._task.args["gate"]]
        pair: dict[Any, str] = dict(gate["pair"])
        result["changed"] = False

        # Every host of the pair has the same knowledge; the first one in the run shows it.
        in_run = [name for name in pair.values() if name in variables["ansible_play_hosts"]]
        if in_run and host != in_run[0]:
            return result
        seen = {
            role: self._seen(variables["hostvars"][name], str(self._task.args["seen"]))
            for role, name in sorted(pair.items())
        }
        text = _text(seen)
        notes = [*gate["absences"].values(), *gate["input_problems"]]
        notes += [str(one["problem"]) for one in seen.values() if one.get("problem")]
        if text is None:
            text = "There is nothing to show: no description on the hosts, none from the variables."
        result["table"] = text
        result["notes"] = notes = list(dict.fromkeys(map(str, notes)))
        display.display("\n".join([_indent(text), *(f"  ! {note}" for note in notes)]))
        return result

    def _seen(self, variables: Mapping[str, Any], register: str) -> dict[str, Any]:
        return dict(variables[register]) if register in variables else {}


def _text(seen: Mapping[Any, Mapping[str, Any]]) -> str | None:
    """The table, from what each host told; None when neither could be described."""
    data = next((one["description"] for one in seen.values() if one.get("description")), None)
    if data is None:
        return None
    head = seen.get("head", {})
    return report.pair_table(
        descriptions.parse(data),
        {role: one.get("view") for role, one in seen.items()},
        head.get("state"),
        head.get("last_switch"),
    )


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
