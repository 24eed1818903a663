"""Make the plan for the weights of a pair, show it once, and say what this run does of it.

Works on the controller. The Hub is asked only for what neither machine keeps from it, and whether
it would give what is gated and still to be fetched.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import ansible_pair  # noqa: E402 - needs the path above
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.weights import (  # noqa: E402
    found_text,
    plan_table,
    planning,
    questions,
    stage,
    variables,
)

display = Display()


class ActionModule(ActionBase):
    """Acts on the host that speaks for its pair; on the other one it has nothing to do."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked", "done"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `looked` name the registered results of the gate and of the look.

        With `done` (ids of steps that were carried out) nothing is shown, and it is a failure when
        one of them is still to be done.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        facts, args = task_vars or {}, self._task.args
        pair = ansible_pair.spoken_for(facts, args["gate"], args["looked"])
        if pair is None:
            return result
        if pair.problems:
            result.update(failed=True, msg=" ".join(pair.problems))
            return result
        if pair.missing:
            self._show(
                [
                    line
                    for role, seen in pair.seens.items()
                    for line in found_text.lines(pair.names[role], seen)
                ]
            )
            words = "; ".join(pair.missing)
            result.update(failed=True, msg=f"No plan can be made without both machines: {words}")
            return result
        try:
            result.update(self._planned(pair, list(facts["ansible_run_tags"])))
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _planned(self, pair: ansible_pair.Pair, tags: Sequence[str]) -> dict[str, Any]:
        settings, seens = variables.settings_of(pair.host, pair.hostvars), pair.seens
        hub = questions.HubQuestions(
            settings.endpoint,
            variables.token_of(pair.host, pair.hostvars),
            say=lambda words: display.display(f"  {words}"),
        )
        made = planning.make(settings, seens, hub)
        done = self._task.args.get("done")
        if done is not None:
            return _unrecorded(made.plan.steps, list(done), made.plan.problems)
        work = stage.work(made.plan, tags)
        end = stage.end(work, settings.names, check=self._task.check_mode)
        table = plan_table.table(made.plan, settings.names)
        self._show(
            [
                *table.splitlines(),
                *_notes(seens, settings.names),
                *(f"! {words}" for words in made.notes),
                *(f"! {words}" for words in (stage.note(work.others, settings.names),) if words),
            ]
        )
        if made.plan.problems:
            return {"failed": True, "msg": " ".join(made.plan.problems)}
        return {
            "table": table,
            "plan": made.plan.as_dict(),
            "do": [step.as_dict() for step in work.do],
            "manifests": {name: one.as_dict() for name, one in made.manifests.items()},
            "left": end.refusal,
            "left_in_check_mode": end.words,
        }

    def _show(self, lines: Sequence[str]) -> None:
        if lines:
            display.display("\n".join(f"  {line}" if line else "" for line in lines))


def _notes(seens: Mapping[Any, Mapping[str, Any]], names: Mapping[Any, str]) -> list[str]:
    """What differs from the records, and what could not be read, after a blank line."""
    found = [
        f"{names[role]} {words}"
        for role, seen in sorted(seens.items())
        for words in found_text.notes(seen)
    ]
    return ["", *found] if found else []


def _unrecorded(
    steps: Sequence[Any], done: Sequence[str], problems: Sequence[str]
) -> dict[str, Any]:
    """Whether what was done is recorded; problems of the rest of the plan keep their own words."""
    still = [step for step in steps if step.id in done]
    if still:
        why = ", ".join(f"{step.id} ({step.words})" for step in still)
        return {
            "failed": True,
            "msg": f"The steps ended well, but the machines do not vouch for it: {why}. Look at "
            "'spark-pair weights' there and run again; what is whole is not fetched twice",
        }
    if problems:
        return {"failed": True, "msg": " ".join(problems)}
    return {"recorded": list(done)}
