"""Show what a pair holds that nobody has recorded, and say what each machine is to prove of it."""

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
    adopt_plan,
    found_text,
    planning,
    questions,
    variables,
)
from spark_pair.weights import seen as looks  # noqa: E402
from spark_pair.weights.manifest import Manifest, Source  # noqa: E402

_NOTHING = "Nothing lies on the machines without a record."

display = Display()


class ActionModule(ActionBase):
    """Acts on the host that speaks for its pair; on the other one it has nothing to do."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `looked` name the registered results of the gate and of the look.

        Returns `orders`, by the names of the hosts that have something to record.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        args = self._task.args
        pair = ansible_pair.spoken_for(task_vars or {}, args["gate"], args["looked"])
        if pair is None:
            return result
        if said := [*pair.problems, *pair.missing]:
            result.update(failed=True, msg="; ".join(said))
            return result
        try:
            result.update(self._adoption(pair))
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
        return result

    def _adoption(self, pair: ansible_pair.Pair) -> dict[str, Any]:
        settings, seens = variables.settings_of(pair.host, pair.hostvars), pair.seens
        hub = questions.HubQuestions(
            settings.endpoint,
            variables.token_of(pair.host, pair.hostvars),
            say=lambda words: display.display(f"  {words}"),
        )
        stated = adopt_plan.Stated(settings.adopt_checkpoint, settings.adopt_overlay)
        cuts = adopt_plan.cuts(seens, stated)
        against = adopt_plan.contradiction(stated, overlay_wanted=settings.options.overlay)
        needed = [
            one
            for one in settings.wanted
            if _lies_there(one, seens) or (one.name == "overlay" and cuts and stated.grafted)
        ]
        lists = planning.gather(
            tuple(needed),
            seens,
            hub,
            lambda source, tree: not cuts and adopt_plan.all_recorded(seens, source, tree),
        )
        by_repo = _of_others(needed, seens) | {one.repo: one for one in lists.manifests.values()}
        lines = [
            f"{settings.names[role]}  {line}"
            for role, seen in sorted(seens.items())
            for line in [
                *adopt_plan.found(seen, settings.wanted, by_repo, role),
                *found_text.notes(seen),
            ]
        ]
        lines += [f"! {words}" for words in lists.notes]
        display.display("\n".join(f"  {line}" for line in lines or [_NOTHING]))
        if cuts and against:
            return {"failed": True, "msg": against}
        if lists.problems:
            return {"failed": True, "msg": " ".join(lists.problems)}
        made = adopt_plan.order(
            seens,
            settings.wanted,
            by_repo,
            stated,
            asked={role: settings.asked(role) for role in settings.names},
            names=settings.names,
            known=settings.sources,
        )
        if made.problems:
            return {"failed": True, "msg": " ".join(made.problems)}
        return {
            "found": lines,
            "orders": {settings.names[role]: order for role, order in made.orders.items()},
        }


def _of_others(
    needed: Sequence[Source], seens: Mapping[Any, Mapping[str, Any]]
) -> dict[str, Manifest]:
    """What machines know of other sources, which says which commit a beginning means."""
    asked = {one.repo for one in needed}
    known = looks.trees(seens.values()) | looks.manifests(seens.values())
    return {repo: one for repo, one in known.items() if repo not in asked}


def _lies_there(source: Source, seens: Mapping[Any, Mapping[str, Any]]) -> bool:
    """Whether something of a source lies on a machine; about others nobody needs to be asked."""
    return any(
        seen["cached"].get(source.repo) or source.repo in {**seen["manifests"], **seen["trees"]}
        for seen in seens.values()
    )
