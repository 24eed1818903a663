"""Judge what was measured on both hosts of a pair, show one table, keep the evidence, and fail when
something in it failed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import ansible_words, findings_table  # noqa: E402 - needs the path above
from spark_pair.preflight import asked, evidence, judge  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"gate", "looked", "accept", "folder"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`gate` and `looked` name the registered results of the gate and of the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        hostvars = variables["hostvars"]
        args = self._task.args
        gate = variables[args["gate"]]
        # Without a pair in the inventory this host can only speak for itself.
        pair: dict[Any, str] = dict(gate["pair"]) or {"head": host}
        accepted = asked.accepted(args["accept"])
        seen = {
            role: self._seen(hostvars[name], gate["absences"].get(name) if gate["pair"] else None)
            for role, name in pair.items()
        }
        wanted = asked.wanted(
            pair, hostvars, gate["description"], self._problems(pair, hostvars, gate, accepted)
        )
        found = judge.findings(pair, seen, wanted)
        result["changed"] = False

        # Every host of the pair comes to the same table; the first one in the run shows it.
        in_run = [name for name in pair.values() if name in variables["ansible_play_hosts"]]
        if in_run and host == in_run[0]:
            at = datetime.now(UTC)
            content = evidence.document(pair, seen, found, accepted, at)
            result["evidence"], kept = self._keep(content, at)
            shown = findings_table.table(
                "preflight", pair, found, titles=judge.TITLES, accepted=accepted
            )
            display.display(f"{shown}\n  {kept}")
        if summary := findings_table.summary(found, accepted):
            result.update(failed=True, msg=summary)
        else:
            # A failed result would print them all once more.
            result["verdicts"] = {one.id: findings_table.verdict(one, accepted) for one in found}
        return result

    def _problems(
        self,
        pair: Mapping[Any, str],
        hostvars: Mapping[str, Any],
        gate: Mapping[str, Any],
        accepted: Sequence[str],
    ) -> list[str]:
        """What is wrong with the variables, each sentence once."""
        register = self._task.args["gate"]
        found = [] if gate["pair"] else [str(words) for words in gate["absences"].values()]
        for name in pair.values():
            # A host that is not in the run has no result of the gate.
            if register in hostvars[name]:
                found += map(str, hostvars[name][register]["input_problems"])
        return list(dict.fromkeys([*found, *judge.unknown_names(accepted)]))

    def _seen(self, variables: Mapping[str, Any], absence: str | None) -> judge.Seen:
        user, home = (str(variables.get(f"spark_{key}") or "") for key in ("user", "home"))
        if absence:
            return judge.Seen(user, home, absence=absence)
        register = self._task.args["looked"]
        looked = dict(variables[register]) if register in variables else {}
        if "measured" not in looked:
            return judge.Seen(user, home, failure=ansible_words.why_not(looked))
        return judge.Seen(user, home, measured=looked["measured"], unread=looked["unread"])

    def _keep(self, content: Mapping[str, Any], at: datetime) -> tuple[str, str]:
        """Write the evidence; its path and a line about it. A full disk here stops no run."""
        folder = ROOT / str(self._task.args["folder"])
        try:
            path = evidence.write(folder, content, at)
        except OSError as error:
            return "", f"! the evidence could not be written: {error}"
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        return str(path), f"evidence: {shown}"
