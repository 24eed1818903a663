"""Show what was found on both machines; leave it in a file when one is named."""

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

from spark_pair import ansible_words, jsonfile, pair_variables  # noqa: E402 - needs the path above
from spark_pair.description import ROLES  # noqa: E402
from spark_pair.discover import pair as pairs  # noqa: E402
from spark_pair.discover import words  # noqa: E402
from spark_pair.errors import SparkPairError  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked", "output"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `looked` name the registered results; `output` is a file, or empty."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        hostvars = variables["hostvars"]
        gate = variables[self._task.args["gate"]]
        # Without a pair in the inventory this host can only speak for itself.
        pair: dict[Any, str] = dict(gate["pair"]) or {"head": host}
        views: dict[str, pairs.View] = {}
        problems: dict[str, str] = {}
        for name in pair.values():
            looked = self._looked(hostvars[name], str(self._task.args["looked"]))
            if "view" in looked:
                views[name] = looked["view"]
            else:
                problems[name] = _reason(name, gate["absences"].get(name), looked)
        differs = self._differences(host, pair, views, hostvars)
        result.update(changed=False, views=views, problems=problems, differences=differs)

        # Every host of the pair comes to the same words; the first one in the run says them.
        in_run = [name for name in pair.values() if name in variables["ansible_play_hosts"]]
        if in_run and host == in_run[0]:
            display.display(_report(pair, views, problems, differs))
            if output := str(self._task.args.get("output") or ""):
                # A scratch file of whoever asked for it, in check mode too.
                jsonfile.write(Path(output), {"views": views, "problems": problems}, mode=0o600)
        return result

    def _looked(self, variables: Mapping[str, Any], register: str) -> dict[str, Any]:
        return dict(variables[register]) if register in variables else {}

    def _differences(
        self,
        host: str,
        pair: Mapping[Any, str],
        views: Mapping[str, pairs.View],
        hostvars: Mapping[str, Any],
    ) -> list[str] | None:
        """What an inventory that describes the pair says otherwise; None when none does."""
        if not any("spark_user" in hostvars[name] for name in pair.values()):
            return None
        try:
            found = words.differences(pair, views, hostvars)
            if len(views) == len(pair) == len(ROLES):
                catalog = pair_variables.catalog_of(pair["head"], hostvars)
                mine = hostvars[pair["head"]]
                incumbent = pairs.incumbent(
                    {role: views[name] for role, name in pair.items()},
                    pair,
                    catalog,
                    str(mine.get("model_server_wanted")),
                    pairs.units_of_engines(mine.get("tensorfold_service_engines") or {}),
                )
                found += words.of_servers(incumbent, mine.get("model_server_fallback"))
        except (SparkPairError, KeyError, TypeError, AttributeError) as error:
            return [f"the inventory cannot be compared: {error}"]
        return found


def _reason(name: str, absence: object, looked: Mapping[str, Any]) -> str:
    """Why a machine was not looked at."""
    if absence:
        return str(absence)
    return words.not_looked_at(name, ansible_words.why_not(looked))


def _report(
    pair: Mapping[Any, str],
    views: Mapping[str, pairs.View],
    problems: Mapping[str, str],
    differs: list[str] | None,
) -> str:
    lines = [
        words.summary(f"{name} ({role})", views[name])
        for role, name in pair.items()
        if name in views
    ]
    lines += [f"  ! {problem}" for problem in problems.values()]
    if differs is not None:
        lines.append("  differs from the inventory" if differs else "  as the inventory says")
        lines += [f"    - {one}" for one in differs]
    return "\n".join(lines)
