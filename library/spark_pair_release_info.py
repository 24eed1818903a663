#!/usr/bin/python
"""Tell what decides about the tool's release on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_release_info
short_description: Tell what decides about the tool's release on a host
description:
  - Reports Python, machine type and glibc of the host, the packages that are missing there, and
    which release of the tool is current. Reads only.
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the tool on the host
  spark_pair_release_info:
  register: __host_tools_found
"""

RETURN = r"""
python:
  description: Version of the operating system's Python, two numbers.
  type: str
  returned: always
machine:
  description: Machine type.
  type: str
  returned: always
glibc:
  description: Version of the C library.
  type: str
  returned: always
missing_packages:
  description: Packages of the operating system that are still needed.
  type: list
  elements: str
  returned: always
release:
  description: Hash of the current release, or null.
  type: str
  returned: always
complete:
  description: Whether that release and its commands in /usr/local/bin are all there.
  type: bool
  returned: always
switch_running:
  description: Whether a switch of the pair is running on this host.
  type: bool
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import installation


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    module.exit_json(changed=False, **installation.facts())


if __name__ == "__main__":
    main()
