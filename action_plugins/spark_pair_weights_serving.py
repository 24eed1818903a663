"""Say whether work on the weights may start now, and whether it has to be gentle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import ansible_pair  # noqa: E402 - needs the path above
from spark_pair import description as descriptions  # noqa: E402
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.weights import serving, variables  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only; hosts that are asked about come to the same decision."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "seen", "switching", "jobs"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The arguments name the registered results of the gate and of the looks at the machines:
        who serves (`seen`), whether a switch is at work, and the jobs that are wanted.

        Returns `limit_bytes_per_second` and `caps` for what is started now, and in `refused` why
        nothing may be; that ends the run unless one of the jobs runs, which can be attached to.
        Without `seen` it is about reading what is there, which only a switch forbids.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        facts = task_vars or {}
        host, hostvars, args = str(facts["inventory_hostname"]), facts["hostvars"], self._task.args
        gate = facts[args["gate"]]
        pair: dict[Any, str] = dict(gate["pair"])
        switching = [
            str(words)
            for name in pair.values()
            if name not in gate["absences"]
            for words in ansible_pair.registered(hostvars, name, str(args["switching"])).get(
                "switching", [f"whether a switch is at work on {name} is not known"]
            )
        ]
        if "seen" not in args:
            result.update(
                refused=serving.beside_a_switch(switching), caps=serving.READING.as_dict()
            )
            return result
        seen = {
            role: ansible_pair.registered(hostvars, name, str(args["seen"]))
            for role, name in pair.items()
        }
        running = [
            look
            for name in pair.values()
            for look in ansible_pair.registered(hostvars, name, str(args["jobs"])).get(
                "results", ()
            )
            if look.get("view", {}).get("state") == "running"
        ]
        try:
            settings = variables.settings_of(host, hostvars)
            data = next(
                (one["description"] for one in seen.values() if one.get("description")), None
            )
            decision = serving.decide(
                descriptions.parse(data) if data else None,
                {role: one.get("view") for role, one in seen.items()},
                switching,
                allowed=settings.allow_while_serving,
            )
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
            return result
        if decision.refused and not running:
            result.update(failed=True, msg=decision.refused)
            return result
        if decision.words and host == ansible_pair.speaker(pair, facts["ansible_play_hosts"]):
            display.display(f"  {decision.words}: downloads keep within hf_download_while_serving")
        limits = settings.limits
        result.update(
            refused=decision.refused,
            limit_bytes_per_second=limits.bytes_per_second if decision.capped else None,
            caps=limits.caps if decision.capped else {},
        )
        return result
