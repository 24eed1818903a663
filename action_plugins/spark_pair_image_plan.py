"""Say what is left to do for the engines' images of a pair, and what each job is asked for.

Works on the controller, and comes to the same on both hosts, so that both go on or neither does.
"""

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

from spark_pair import ansible_pair, pair_variables  # noqa: E402 - needs the path above
from spark_pair.ansible_words import why_not  # noqa: E402
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.image import asking, due  # noqa: E402
from spark_pair.weights import variables  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked", "done"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `looked` name the registered results of the gate and of the look.

        Returned are `steps`, each with the orders of its jobs, what to `prune` on this host, and
        whether archives lie there that nobody needs (`sweep`). With `done` nothing may be left.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        facts, args = task_vars or {}, self._task.args
        host, hostvars = str(facts["inventory_hostname"]), facts["hostvars"]
        pair: Mapping[Any, str] = dict(facts[args["gate"]]["pair"])
        looked = {
            role: ansible_pair.registered(hostvars, name, str(args["looked"]))
            for role, name in pair.items()
        }
        missing = [
            f"{pair[role]} cannot be looked at: {why_not(one)}."
            for role, one in looked.items()
            if "seen" not in one
        ]
        if missing:
            result.update(failed=True, msg=" ".join(missing))
            return result
        seens = {role: dict(one["seen"]) for role, one in looked.items()}
        try:
            settings = variables.settings_of(host, hostvars)
            images = due.wanted(pair_variables.engines_of(host, hostvars))
            servers = pair_variables.description_of(host, hostvars)["servers"]
            plan = due.plan(
                images,
                seens,
                pair,
                settings.prune_images,
                needed=due.needed(images, servers),
                check=self._task.check_mode,
            )
            steps = [asking.orders(step, images, settings) for step in plan.steps]
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
            return result
        if plan.problems:
            words = ". ".join(plan.problems)
            result.update(failed=True, msg=f"{words}. Nothing of the images was changed.")
            return result
        if args.get("done") and plan.steps:
            left = "; ".join(step.words for step in plan.steps)
            result.update(failed=True, msg=f"The jobs ended well, but it is still due to {left}.")
            return result
        if host == ansible_pair.speaker(pair, facts["ansible_play_hosts"]):
            for line in [*plan.words, *(f"to do: {step.words}" for step in plan.steps)]:
                display.display(f"  {line}")
        role = next(role for role, name in pair.items() if name == host)
        sends = any(step.kind == "ship" for step in plan.steps)
        result.update(
            steps=steps,
            prune=list(plan.prune.get(role, ())),
            sweep=bool(seens[role]["scratch"]) and not sends,
        )
        return result
