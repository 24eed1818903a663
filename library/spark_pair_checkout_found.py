#!/usr/bin/python
"""Read a checkout of the recipe that was changed by hand."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_checkout_found
short_description: Read a checkout of the recipe that was changed by hand
description:
  - Returns the commit, everything that was changed since as one patch, files for a kit, and the
    image that the engine runs. Changes nothing.
options:
  path:
    description: The checkout. A link, or nothing, is nothing found.
    type: path
    required: true
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Read the checkout
  spark_pair_checkout_found:
    path: /home/spark/dsv41
"""

RETURN = r"""
found:
  description: What was found, null when there is no checkout.
  type: dict
  returned: success
patch:
  description: The patch in base64, empty when nothing was changed.
  type: str
  returned: success
"""

import base64
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import engine_adopt
from ansible.module_utils.spark_pair.errors import SparkPairError


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True
    )
    try:
        found = engine_adopt.look(Path(module.params["path"]))
    except (SparkPairError, OSError) as error:
        module.fail_json(msg=str(error))
    patch = base64.b64encode(found.patch).decode("ascii") if found else ""
    module.exit_json(changed=False, found=found.as_dict() if found else None, patch=patch)


if __name__ == "__main__":
    main()
