#!/usr/bin/python
"""Remove images from a host by name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_image_prune
short_description: Remove images from a host by name
description:
  - Never removes one that a container uses, running or not; Docker is never forced.
options:
  names:
    description: Names with their tags. One that is not there is no mistake.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Remove an old image
  spark_pair_image_prune:
    names: [tensorfold-dsv41:0123456789ab]
"""

RETURN = r"""
removed:
  description: Names that were removed, or in check mode would be.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.errors import SparkPairError
from ansible.module_utils.spark_pair.image.prune import prune


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"names": {"type": "list", "elements": "str", "required": True}},
        supports_check_mode=True,
    )
    try:
        removed = prune(module.params["names"], check=module.check_mode)
    except SparkPairError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(removed), removed=removed)


if __name__ == "__main__":
    main()
