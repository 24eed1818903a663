#!/usr/bin/python
"""Look at what a host holds of the weights; reads only, plans nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_weights_look
short_description: Look at what a host holds of the weights
description:
  - Reads the host's record and compares it with the file system without reading the files, and
    looks at the cache, rank files, the image and free space. Changes nothing, needs nothing
    installed.
  - What could not be read is missing, with its reason in C(unread). Nothing fails because of it.
options:
  home:
    description: Home of the account that owns the weights.
    type: str
    required: true
  places:
    description: Absolute paths by what they are for, C(cache), C(work), C(ranks) and C(images).
    type: dict
    default: {}
  repos:
    description: Repositories that are asked about, each with C(repo) and C(revision).
    type: list
    elements: dict
    default: []
  image:
    description: Name of the engine's image. Empty is not asked.
    type: str
    default: ""
  images:
    description: Names of all images that steps may need.
    type: list
    elements: str
    default: []
  beside:
    description: >-
      Also look what else goes on here, at this moment. C(description) of the pair and C(role) in it
      tell who serves, C(host) is the name for sentences, and C(job) is looked at, if it is not
      empty.
    type: dict
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Look at the weights
  spark_pair_weights_look:
    home: "{{ spark_home }}"
    places:
      cache: "{{ spark_home }}/.cache/huggingface/hub"
      ranks: "{{ spark_home }}/.cache/huggingface/tensorfold-dsv41"
    repos:
      - repo: Mia-AiLab/DeepSeek-V4.1-Flash-1017-EXL3-EAQ-v1-2.9-bpw
        revision: 45ee5d0f
  register: looked
"""

RETURN = r"""
seen:
  description: What the host holds, as C(spark_pair.weights.look) describes it.
  type: dict
  returned: always
beside:
  description: >-
    C(description), C(view), C(switching) and C(job), as C(spark_pair.weights.beside) says.
  type: dict
  returned: when asked for
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.weights.beside import beside
from ansible.module_utils.spark_pair.weights.look import look


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "str", "required": True},
            "places": {"type": "dict", "default": {}},
            "repos": {"type": "list", "elements": "dict", "default": []},
            "image": {"type": "str", "default": ""},
            "images": {"type": "list", "elements": "str", "default": []},
            "beside": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    asked = module.params["beside"]
    more = {"beside": beside(asked)} if asked else {}
    module.exit_json(changed=False, seen=look(module.params), **more)


if __name__ == "__main__":
    main()
