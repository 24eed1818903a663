"""First task of every play over a pair: are both machines here, and do the variables make sense?

Nothing is asked of a host. The `ping` before this task has turned "unreachable" into a result, so
that both hosts of the pair come to the same verdict and neither goes on without the other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import gate, pair_variables, roles  # noqa: E402 - needs the path above
from spark_pair.errors import DescriptionError  # noqa: E402
from spark_pair.weights import variables as weights_variables  # noqa: E402


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"ping", "needs", "inputs"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Fail with one sentence, or return what is known about both hosts of the pair."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        hostvars = variables["hostvars"]
        args = self._task.args
        result["changed"] = False

        problems, description = self._inputs(host, hostvars, variables, str(args["inputs"]))
        # Without the name of a ping only those who failed in the meantime are looked for.
        register = args.get("ping")
        try:
            pair = pair_variables.pair_of(host, hostvars)
        except DescriptionError as error:
            pair = {}
            absences = {host: str(error)}
        else:
            pings = (
                {name: self._ping(name, hostvars, str(register)) for name in pair.values()}
                if register
                else None
            )
            absences = gate.absences(
                pair,
                in_limit=list(variables["ansible_play_hosts_all"]),
                still_in=list(variables["ansible_play_hosts"]),
                pings=pings,
                limit=str(variables.get("ansible_limit") or ""),
            )
        if args["needs"] == "pair" and (absences or problems):
            sentences = list(dict.fromkeys([*absences.values(), *problems]))
            result.update(failed=True, msg=gate.refusal(sentences, untouched=bool(register)))
            return result
        result.update(
            pair=pair, absences=absences, input_problems=problems, description=description
        )
        return result

    def _ping(self, name: str, hostvars: Mapping[str, Any], register: str) -> dict[str, Any] | None:
        """Result of the ping on one host, or None when it did not take part."""
        try:
            ping = hostvars[name][register]
        except KeyError:
            return None
        return dict(ping)

    def _inputs(
        self, host: str, hostvars: Mapping[str, Any], variables: Mapping[str, Any], inputs: str
    ) -> tuple[list[str], dict[str, Any]]:
        """What is wrong with the variables, and the description that they make ({} if none)."""
        if inputs == "none":
            return [], {}
        problems = [
            f"{name} of {host} is not a variable of this repository"
            + (f": did you mean {near}?" if near else "")
            for name, near in pair_variables.misspelt(
                variables, roles.known_variables(ROOT), roles.role_prefixes(ROOT)
            )
        ]
        if inputs == "names" or problems:
            return problems, {}
        try:
            description = pair_variables.description_of(host, hostvars)
            # A mistake about weights is no reason not to switch, or not to look at what serves.
            if inputs == "weights":
                weights_variables.settings_of(host, hostvars)
        except DescriptionError as error:
            return [str(error)], {}
        return [], description
