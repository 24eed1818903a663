"""Say what the job of a step is asked for, from what both machines hold at this moment.

Works on the controller. The plan is made once more, by the lists that it was made of: what the
steps before have made is in it by now, and a step that is not due any more is left out.
"""

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
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.weights import due, planning, variables  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Comes to the same on both hosts of a pair, so that both go on or neither does."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked", "plan", "step", "drop"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate`, `looked` and `plan` name the registered results of the gate, of the look and of
        spark_pair_weights_plan; `step` is the id of one of its steps.

        Returns whether the step is `due`, and its `order`. With `drop` they are about the copy of a
        rank file that the step has sent. A check makes no orders: nothing was done before it.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result.update(changed=False, due=True, order={})
        facts, args = task_vars or {}, self._task.args
        if self._task.check_mode:
            return result
        pair = ansible_pair.known(facts, args["gate"], args["looked"])
        if said := [*pair.problems, *pair.missing]:
            result.update(failed=True, msg=" ".join(said))
            return result
        try:
            planned = ansible_pair.registered(pair.hostvars, pair.names["head"], args["plan"])
            lists = due.Known.of(planned["manifests"])
            result.update(self._ordered(pair, lists, str(args["step"])))
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _ordered(self, pair: ansible_pair.Pair, lists: due.Known, name: str) -> dict[str, Any]:
        settings = variables.settings_of(pair.host, pair.hostvars)
        made = planning.make(settings, pair.seens, lists)
        if self._task.args.get("drop"):
            order = planning.drop_order(settings, made, pair.seens)
            return {"due": order is not None, "order": order or {}}
        step = due.step(made.plan, name)
        if step is None:
            if pair.host == pair.names["head"]:
                display.display(f"  {name} is not due any more: the machines hold what it was for")
            return {"due": False}
        return {"order": planning.order(step, settings, made, pair.seens)}
