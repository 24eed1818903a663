"""What both hosts of a pair do about their rails, decided once from what both have told.

Nothing is asked of a host. Each host of the pair comes to the same verdict from the same results.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import description as descriptions  # noqa: E402 - needs the path above
from spark_pair import pair_variables  # noqa: E402
from spark_pair.description import ROLES, Role  # noqa: E402
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.rails import plan as plans  # noqa: E402
from spark_pair.rails.wanted import Wanted, wanted_of  # noqa: E402

display = Display()

_VARIABLES = (
    "cx7_network_rails",
    "cx7_network_mtu",
    "cx7_network_renderer",
    "cx7_network_file",
    "cx7_network_confirm_seconds",
)


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        {
            "step",
            "seen",
            "planned",
            "applied",
            "looked",
            "confirmed",
        }
    )

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`step` is wanted, change or proof; the other arguments name registered results."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        self._hostvars: Mapping[str, Mapping[str, Any]] = variables["hostvars"]
        host = str(variables["inventory_hostname"])
        result["changed"] = False
        try:
            self._pair = pair_variables.pair_of(host, self._hostvars)
            self._me: Role = "head" if self._pair["head"] == host else "worker"
            wanted = wanted_of(
                self._pair, {name: self._plain(name) for name in self._pair.values()}
            )
            step = {"wanted": self._wanted, "change": self._change, "proof": self._proof}
            result.update(step[str(self._task.args["step"])](wanted))
        except SparkPairError as error:
            result.update(failed=True, msg=f"{str(error).rstrip('.')}. Nothing was changed")
        return result

    # ---- the steps

    def _wanted(self, wanted: Mapping[Role, Wanted]) -> dict[str, Any]:
        return {"wanted": wanted[self._me].as_dict()}

    def _change(self, wanted: Mapping[Role, Wanted]) -> dict[str, Any]:
        """Adopt or configure, for each host; or why neither may be done."""
        told = {role: self._result("planned", role) for role in ROLES}
        servers = self._servers({role: list(told[role]["gpu"]) for role in ROLES})
        decision = plans.decide(
            self._pair,
            wanted,
            {role: told[role]["view"] for role in ROLES},
            {role: dict(told[role]["plan"]) for role in ROLES},
            servers,
            allow_disruption=self._allowed("cx7_network_allow_disruption"),
            allow_management_rail=self._allowed("cx7_network_allow_management_rail"),
            switching={role: str(told[role]["switching"]) for role in ROLES},
        )
        if decision.obstacles:
            said = " ".join(f"{words.rstrip('.')}." for words in decision.obstacles)
            return {"failed": True, "msg": f"{said} Nothing was changed"}
        if self._me == "head":
            for words in decision.warnings:
                display.warning(words)
        return {
            "id": f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:8]}",
            "action": decision.actions[self._me],
            "changing": decision.changing,
            "refused": decision.refused,
            "servers": servers,
        }

    def _proof(self, wanted: Mapping[Role, Wanted]) -> dict[str, Any]:
        """Whether the change is proven on both hosts and, later, confirmed on both."""
        problems = []
        for step in ("applied", "confirmed"):
            if step not in self._task.args:
                continue
            for role in ROLES:
                said = self._result(step, role)
                if said.get("skipped") or not said:
                    continue
                words = self._trouble(said, step)
                if words:
                    problems.append(f"{self._pair[role]}: {words}")
        if "looked" in self._task.args and not problems:
            views = {role: self._result("looked", role).get("view") for role in ROLES}
            problems += plans.unproven(self._pair, wanted, views)
        return {"proven": not problems, "problems": problems}

    @staticmethod
    def _trouble(said: Mapping[str, Any], step: str) -> str:
        """What went wrong with a verb of the job, or ""."""
        if said.get("unreachable") and step == "confirmed":
            return (
                "it did not answer when the change was to be confirmed and may have kept it. When "
                "it answers again, run --tags network once more, which makes both machines alike"
            )
        if said.get("unreachable"):
            return "it cannot be reached any more and puts its rails back by itself"
        if said.get("failed") or "ok" not in said:
            return str(said.get("msg") or "no result")
        return "" if said["ok"] else str(said["message"])

    # ---- what is known

    def _servers(self, gpu: Mapping[Role, list[str]]) -> list[str]:
        """What may be a model server at work on either host."""
        seen = {role: self._result("seen", role) for role in ROLES}
        data = next((one["description"] for one in seen.values() if one.get("description")), None)
        return plans.running(
            descriptions.parse(data) if data else None,
            {role: one.get("view") for role, one in seen.items()},
            gpu,
            self._pair,
        )

    def _result(self, argument: str, role: Role) -> dict[str, Any]:
        """A registered result of one host, {} when it has none."""
        register = str(self._task.args[argument])
        try:
            return dict(self._hostvars[self._pair[role]][register])
        except (KeyError, TypeError):
            return {}

    def _allowed(self, name: str) -> bool:
        """Whether an exception is allowed for both hosts: they decide alike."""
        values = [self._hostvars[host].get(name, False) for host in self._pair.values()]
        return all(boolean(value, strict=False) for value in values)

    def _plain(self, host: str) -> dict[str, Any]:
        found = {}
        for name in _VARIABLES:
            if name in self._hostvars[host]:
                found[name] = self._hostvars[host][name]
        return found
