"""Say whether work on the weights may start now, and whether it has to be gentle."""

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

from spark_pair import ansible_pair  # noqa: E402 - needs the path above
from spark_pair import description as descriptions  # noqa: E402
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.weights import serving, variables  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only; hosts that are asked about come to the same decision."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked", "switching", "step"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` names the registered result of the gate.

        About a `step` of the plan, `looked` names the result of the look at what goes on beside it.
        Returned are `limit_bytes_per_second` and `caps` for what is started now, and in `refused`
        why nothing may be; that ends the run unless the step's job runs, which can be attached to.

        Otherwise it is about reading what is there, which only a switch forbids, and `switching`
        names the result of the look for one.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        facts, args = task_vars or {}, self._task.args
        host, hostvars, gate = (
            str(facts["inventory_hostname"]),
            facts["hostvars"],
            facts[args["gate"]],
        )
        pair: dict[Any, str] = dict(gate["pair"])
        if "step" not in args:
            said = _switching(
                {
                    name: ansible_pair.registered(hostvars, name, str(args["switching"]))
                    for name in pair.values()
                    if name not in gate["absences"]
                }
            )
            result.update(refused=serving.beside_a_switch(said), caps=serving.READING.as_dict())
            return result
        step = args["step"]
        beside = {
            role: ansible_pair.registered(hostvars, name, str(args["looked"])).get("beside", {})
            for role, name in pair.items()
        }
        try:
            settings = variables.settings_of(host, hostvars)
            decision = _decision(step, settings, pair, beside)
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
            return result
        job = beside[step["host"]].get("job", {})
        if decision.refused and job.get("state") != "running":
            result.update(failed=True, msg=decision.refused)
            return result
        variable, limits = serving.limits(step, settings)
        if decision.words and host == ansible_pair.speaker(pair, facts["ansible_play_hosts"]):
            display.display(f"  {decision.words}: {step['id']} keeps within {variable}")
        result.update(
            refused=decision.refused,
            limit_bytes_per_second=limits.bytes_per_second if decision.capped else None,
            caps=limits.caps if decision.capped else {},
        )
        return result


def _decision(
    step: Mapping[str, Any],
    settings: variables.Settings,
    pair: Mapping[Any, str],
    beside: Mapping[Any, Mapping[str, Any]],
) -> serving.Decision:
    data = next((one["description"] for one in beside.values() if one.get("description")), None)
    return serving.decide(
        descriptions.parse(data) if data else None,
        {role: one.get("view") for role, one in beside.items()},
        _switching({pair[role]: one for role, one in beside.items()}),
        allowed=settings.allow_while_serving,
        container=serving.container(step, settings),
    )


def _switching(looked: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Words about switches at work, from what each host told."""
    return [
        str(words)
        for name, one in looked.items()
        for words in one.get("switching", [f"whether a switch is at work on {name} is not known"])
    ]
