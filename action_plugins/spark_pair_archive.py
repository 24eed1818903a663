"""Make the tool's archive on the controller for one kind of host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import release  # noqa: E402 - needs the path above
from spark_pair.errors import SparkPairError  # noqa: E402

display = Display()


class ActionModule(ActionBase):
    """Runs on the controller only, so `become` and delegation do not matter."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"python", "machine", "glibc"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the archive's path; in check mode say what would be made."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = (task_vars or {}).get("inventory_hostname", "")
        args = {key: str(value) for key, value in self._task.args.items()}
        cache = ROOT / ".cache" / "wheelhouse"
        try:
            result["changed"] = False  # the controller's cache is not part of any host's state
            release.check_platform(args["python"], args["machine"])
            if self._task.check_mode:
                result["msg"] = f"would ship release {release.release_hash(ROOT)} to {host}"
                return result
            archive = release.build_archive(
                ROOT, cache, **args, say=lambda words: display.display(f"  [{host}] {words}")
            )
            result["path"] = str(archive)
        except SparkPairError as error:
            result.update(failed=True, msg=f"{host}: {error}")
        return result
