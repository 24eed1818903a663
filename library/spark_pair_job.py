#!/usr/bin/python
"""Start a job of a host, or attach to it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_pair_job
short_description: Start a job of a host, or attach to it
description:
  - A job is long work that runs as the unit C(spark-pair-job-<name>.service), so that neither the
    controller nor ssh can end it. Starting one that runs attaches to it.
  - Does not wait for the job; C(spark_pair_job_follow) does.
options:
  name:
    description: Name of the job.
    type: str
    required: true
  argv:
    description: Its program, by an absolute path, and arguments.
    type: list
    elements: str
    required: true
  words:
    description: What it does, for people.
    type: str
    default: ""
  user:
    description: Account that it runs as. Empty for root.
    type: str
    default: ""
  order:
    description: Details of the work, which the program finds as C(order.json) in its folder.
    type: dict
  environment:
    description: Variables that its program gets besides; everybody can read them.
    type: dict
    default: {}
  secrets:
    description: Secrets by name; the program reads them from files that only it can read.
    type: dict
    default: {}
  caps:
    description: What it may take from the machine, absent limits are none.
    type: dict
    default: {}
    suboptions:
      memory_max:
        description: Bytes, page cache included.
        type: int
      io_weight:
        description: 1 to 10000, against 100 of everything else.
        type: int
      cpu_weight:
        description: 1 to 10000, against 100 of everything else.
        type: int
  refused:
    description:
      - Why it may not be started now, if it may not.
      - A job that runs already is attached to all the same.
    type: str
    default: ""
  record:
    description: Whether root records at the job's end what it has proven.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
author:
  - The spark-pair authors
"""

EXAMPLES = r"""
- name: Download the checkpoint
  spark_pair_job:
    name: download-checkpoint-head
    argv: [/usr/local/bin/spark-pair, weights, download]
    words: download checkpoint
    user: "{{ spark_user }}"
    order: "{{ __weights_order }}"
    secrets: {hf-token: "{{ weights_hub_token }}"}
    record: true
"""

RETURN = r"""
attached:
  description: Whether the job ran already.
  type: bool
  returned: success
same:
  description: Whether what runs is what was asked for.
  type: bool
  returned: success
view:
  description: The job after this, as C(spark-pair jobs look --json) tells it.
  type: dict
  returned: success
message:
  description: What was done, or in check mode would be.
  type: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_pair.errors import SparkPairError
from ansible.module_utils.spark_pair.jobs import wanted
from ansible.module_utils.spark_pair.jobs.units import Jobs
from ansible.module_utils.spark_pair.weights.kept import Kept, ordered


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "argv": {"type": "list", "elements": "str", "required": True},
            "words": {"type": "str", "default": ""},
            "user": {"type": "str", "default": ""},
            "order": {"type": "dict"},
            "environment": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "caps": {
                "type": "dict",
                "default": {},
                "options": {
                    "memory_max": {"type": "int"},
                    "io_weight": {"type": "int"},
                    "cpu_weight": {"type": "int"},
                },
            },
            "refused": {"type": "str", "default": ""},
            "record": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        answer = wanted.started(Jobs(), params, check=module.check_mode)
        if answer["changed"] and not module.check_mode:
            # What a commit holds need never be asked of the Hub again.
            for manifest in ordered(params["order"] or {}):
                Kept().keep(manifest)
        module.exit_json(**answer)
    except (SparkPairError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
