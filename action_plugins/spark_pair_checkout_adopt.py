"""Keep what was changed by hand in a checkout of the recipe, and say how to declare it."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import engine_adopt  # noqa: E402 - needs the path above

display = Display()


class ActionModule(ActionBase):
    """Writes on the controller only."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset({"found", "patch", "to"})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`found` and `patch` are what the module of the host returned, `to` names the file here.

        Returns `lines`, to be put into the variables. A file that holds something else is refused.
        """
        result: dict[str, Any] = super().run(tmp, task_vars)
        result["changed"] = False
        args = self._task.args
        host = str((task_vars or {})["inventory_hostname"])
        found: Mapping[str, Any] | None = args["found"]
        if not found:
            return result
        target = Path(str(args["to"]))
        listing = target.with_suffix(".MANIFEST")
        files: dict[Path, bytes] = {}
        if found["files"]:
            files[target] = base64.b64decode(str(args["patch"]))
        if found["kit"]:
            files[listing] = str(found["kit"]["manifest"]).encode()
        try:
            other = [path for path in files if path.exists() and path.read_bytes() != files[path]]
            if other:
                result.update(
                    failed=True,
                    msg=f"{other[0]} on this controller holds something else than what "
                    f"{found['path']} on {host} gives, and is not overwritten: move it away, or "
                    "name another file in engine_image_adopt_to",
                )
                return result
            for path, data in files.items():
                if not path.exists():
                    result["changed"] = True
                    if not self._task.check_mode:
                        engine_adopt.keep(path, data)
        except OSError as error:
            result.update(failed=True, msg=f"{error.filename}: {error.strerror}")
            return result
        said = engine_adopt.lines(found, str(target), str(listing))
        heading = f"{found['path']} on {host}"
        changed = f"{len(found['files'])} changed files" if found["files"] else "no change"
        words = f"{heading}: {found['commit'][:12]} with {changed}; to declare it:"
        display.display("\n".join(f"  {line}" for line in (words, *(f"  {one}" for one in said))))
        result["lines"] = said
        return result
