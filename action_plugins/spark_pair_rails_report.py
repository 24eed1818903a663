"""Print one table of a pair's rails; fail when something in it failed or had to be known."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import findings_table, pair_variables  # noqa: E402 - needs the path above
from spark_pair.findings import Finding  # noqa: E402
from spark_pair.preflight import asked  # noqa: E402
from spark_pair.rails import bandwidth, judge  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        {
            "gate",
            "seen",
            "measured",
            "mtu",
            "link_speed",
            "floor",
            "allow_management_rail",
            "before_setup",
            "serving",
            "ways",
            "accepted",
        }
    )

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Judge what both hosts registered.

        `gate` names the registered result of the gate; `seen` that of spark_pair_rails and `ways`
        that of spark_pair_peer_ssh, or `measured` that of the bandwidth test's client.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = str(variables["inventory_hostname"])
        pair: dict[Any, str] = dict(variables[self._task.args["gate"]]["pair"])
        accepted = asked.accepted(self._task.args.get("accepted"))
        hostvars = {name: variables["hostvars"][name] for name in pair.values()}
        found = (
            self._bandwidth(pair, hostvars)
            if "measured" in self._task.args
            else self._rails(pair, hostvars)
        )
        table = findings_table.table(
            "bandwidth" if "measured" in self._task.args else "rails",
            pair,
            found,
            titles={**judge.TITLES, **judge.SSH_TITLES, **bandwidth.TITLES},
            accepted=accepted,
        )
        stops = findings_table.summary(found, accepted, self._must_be_known())
        result.update(changed=False, findings=[one.as_dict() for one in found])

        # Every host of the pair comes to the same table; the first one in the run shows it.
        in_run = [name for name in pair.values() if name in variables["ansible_play_hosts"]]
        if in_run and host == in_run[0]:
            display.display(table)
        if stops:
            result.update(failed=True, msg=stops)
            del result["findings"]  # a failed result would print them a second time
        else:
            result["table"] = table
        return result

    def _must_be_known(self) -> tuple[str, ...]:
        """Ids that the stage has to prove. Before it has set anything, it cannot."""
        if self._flag("before_setup"):
            return ()
        return tuple(bandwidth.TITLES) if "measured" in self._task.args else judge.MUST_BE_KNOWN

    def _flag(self, name: str) -> bool:
        return bool(boolean(self._task.args.get(name) or False, strict=False))

    def _rails(
        self, pair: Mapping[Any, str], hostvars: Mapping[str, Mapping[str, Any]]
    ) -> list[Finding]:
        args = self._task.args
        register = str(args["seen"])
        found = judge.findings(
            pair,
            {role: _rails_of(hostvars[name]) for role, name in pair.items()},
            {role: _registered(hostvars[name], register, "view") for role, name in pair.items()},
            mtu=int(args["mtu"]) if args.get("mtu") not in (None, "") else None,
            link_speed=int(args["link_speed"]),
            allow_management_rail=self._flag("allow_management_rail"),
            before_setup=self._flag("before_setup"),
            serving=self._flag("serving"),
        )
        tried = {role: self._ways(role, pair, hostvars) for role in pair}
        return [*found, judge.ssh(pair, tried, before_setup=self._flag("before_setup"))]

    def _ways(
        self, role: Any, pair: Mapping[Any, str], hostvars: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str] | None:
        """Address of the peer -> what ssh said from a host, None when it was not tried there."""
        failures = _registered(hostvars[pair[role]], str(self._task.args["ways"]), "failures")
        peers = [name for name in pair.values() if name != pair[role]]
        if failures is None or not peers:
            return None
        return {
            address: str(failures.get(address, ""))
            for address in pair_variables.addresses(peers[0], hostvars)
        }

    def _bandwidth(
        self, pair: Mapping[Any, str], hostvars: Mapping[str, Mapping[str, Any]]
    ) -> list[Finding]:
        args = self._task.args
        register = str(args["measured"])
        return bandwidth.findings(
            pair,
            [str(rail["interface"]) for rail in _rails_of(hostvars[pair["worker"]])],
            _registered(hostvars[pair["worker"]], register, "rails"),
            floor=float(args["floor"]),
            link_speed=int(args["link_speed"]),
        )


def _rails_of(variables: Mapping[str, Any]) -> list[dict[str, str]]:
    rails = variables.get("cx7_network_rails", [])
    return [{key: str(rail[key]) for key in ("interface", "address")} for rail in rails]


def _registered(variables: Mapping[str, Any], register: str, key: str) -> dict[str, Any] | None:
    """What a host's task returned; None when it did not run there or failed."""
    found = variables.get(register, {}).get(key)
    return dict(found) if found is not None else None
