"""What the hosts of a pair are asked about the engines' images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from spark_pair import pair_variables  # noqa: E402 - needs the path above
from spark_pair.errors import SparkPairError  # noqa: E402
from spark_pair.image import asking, due  # noqa: E402
from spark_pair.weights import variables  # noqa: E402


def asked(hostvars: Mapping[str, Mapping[str, Any]], host: str) -> dict[str, Any]:
    """What `host` is to be asked about the images that it has."""
    try:
        settings = variables.settings_of(host, hostvars)
        images = due.wanted(pair_variables.engines_of(host, hostvars))
    except SparkPairError as error:
        raise AnsibleFilterError(str(error)) from error
    role = next(role for role, name in settings.names.items() if name == host)
    return asking.asked(role, images, settings)


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"spark_pair_image_asked": asked}
