#!/usr/bin/python
"""Look at the engines' images on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_image_look
short_description: Look at the engines' images on a host
description:
  - Tells which of some images are there, what they consist of whichever store Docker has, and
    whether they hold the declared kernel kit. For that a container is made, read and removed;
    nothing is ever started.
  - Works before anything is installed. What Docker does not tell is a reason in the answer, not a
    failure.
options:
  asked:
    description: What to look at, as the filter C(spark_pair_image_asked) gives it.
    type: dict
    required: true
  beside:
    description: >-
      Also tell who serves and how a job is; C(description), C(role), C(host) and C(job), as
      C(spark_pair.weights.beside) says.
    type: dict
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the images
  spark_pair_image_look:
    asked: "{{ hostvars | spark_pair_image_asked(inventory_hostname) }}"
  register: looked
"""

RETURN = r"""
seen:
  description: What the host has, as C(spark_pair.image.look) describes it.
  type: dict
  returned: always
beside:
  description: Who serves, whether a switch is at work, how the job is.
  type: dict
  returned: when asked for
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.image.look import look
from ansible.module_utils.spark_pair.weights.beside import beside


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"asked": {"type": "dict", "required": True}, "beside": {"type": "dict"}},
        supports_check_mode=True,
    )
    asked = module.params["beside"]
    more = {"beside": beside(asked)} if asked else {}
    module.exit_json(changed=False, seen=look(module.params["asked"]), **more)


if __name__ == "__main__":
    main()
