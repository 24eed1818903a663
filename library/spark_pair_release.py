#!/usr/bin/python
"""Install a release of the tool from its archive and make it current."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_release
short_description: Install a release of the tool from its archive and make it current
description:
  - Makes a virtual environment beside the present release, installs the archive's wheels without
    any network, runs the new tool once, then flips the link C(current) in one step.
  - Releases beyond O(keep) are removed, oldest first, but never one that a unit or a running
    process names.
options:
  release:
    description: Hash that names the release.
    type: str
    required: true
  archive:
    description: Archive on the host. It is removed after use.
    type: path
    required: true
  keep:
    description: How many releases stay.
    type: int
    default: 3
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Install the release
  spark_pair_release:
    release: 0123456789ab
    archive: /opt/spark-pair/release-0123456789ab.tar
"""

RETURN = r"""
removed:
  description: Releases that were removed.
  type: list
  elements: str
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair import installation


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "str", "required": True},
            "archive": {"type": "path", "required": True},
            "keep": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    digest, archive = module.params["release"], Path(module.params["archive"])
    if module.check_mode:
        module.exit_json(changed=True, msg=f"would install release {digest}", removed=[])
    try:
        result = installation.install(digest, archive, keep=module.params["keep"])
    except (installation.InstallationError, OSError) as error:
        module.fail_json(
            msg=f"release {digest} of the tool could not be installed: {error}. "
            "The release before it, if there is one, is untouched"
        )
    finally:
        archive.unlink(missing_ok=True)
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
