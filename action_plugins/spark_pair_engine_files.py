"""Prove the operator's own files of an engine on the controller, before any is sent to a host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import engine_files, pair_variables  # noqa: E402 - needs the path above
from spark_pair.errors import SparkPairError  # noqa: E402


class ActionModule(ActionBase):
    """Runs on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"entry"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what the engine `entry` is checked out from.

        `checkout` is for the module of that name, but for the owner and the whole address;
        `kit_archive` is a file here, or nothing; `words` say it all.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False  # the controller's cache is not part of any host's state
        variables = task_vars or {}
        host, entry = str(variables["inventory_hostname"]), str(self._task.args["entry"])
        try:
            engine = next(
                one
                for one in pair_variables.engines_of(host, variables["hostvars"])
                if one.name == entry
            )
            result.update(engine_files.prepare(engine, ROOT / ".cache" / "kits"))
        except SparkPairError as error:
            result.update(failed=True, msg=str(error))
        return result
