"""Recording what lies on a machine as `--tags adopt` does, without a tool installed there.

The archive holds the package as it is in this checkout and a program that looks, makes the order
and carries it out; a machine's own Python runs it.
"""

import io
import zipfile

from simulated_pair.naming import CHECKOUT
from simulated_pair.standins.hub.hub_standin import weights

PROGRAM = '''\
"""usage: record.zip HOME ROLE"""

import sys

from spark_pair.jobs.inside import Reporter
from spark_pair.weights import adopt_plan
from spark_pair.weights.adopt import AdoptOrder, adopt
from spark_pair.weights.look import look
from spark_pair.weights.manifest import Selector, Source
from spark_pair.weights.seen import manifests, trees
from standins import CHECKPOINT_COMMIT, REPOSITORIES

HOME, ROLE = sys.argv[1:]
SOURCES = [
    Source(name, repo, revision, (Selector("*"),), ("head", "worker"))
    for name, (repo, revision) in REPOSITORIES.items()
]
asked = {
    "home": HOME,
    "places": {"ranks": f"{HOME}/.cache/huggingface/tensorfold-dsv41"},
    "repos": [{"repo": source.repo, "revision": source.revision} for source in SOURCES],
}
seen = look(asked)
orders = adopt_plan.order(
    {ROLE: seen},
    SOURCES,
    trees([seen]) | manifests([seen]),
    adopt_plan.Stated(CHECKPOINT_COMMIT, adopt_plan.STOCK),
    asked={ROLE: asked},
    names={ROLE: "this machine"},
)
if orders.problems:
    sys.exit("; ".join(orders.problems))
if ROLE in orders.orders:
    print(adopt(AdoptOrder.from_dict(orders.orders[ROLE]), Reporter())[0])
'''


def archive() -> bytes:
    """Return the archive, which `python3 -I` runs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for path in sorted((CHECKOUT / "spark_pair").rglob("*.py")):
            packed.write(path, path.relative_to(CHECKOUT))
        packed.writestr("standins.py", _repositories())
        packed.writestr("__main__.py", PROGRAM)
    return buffer.getvalue()


def _repositories() -> str:
    """The stand-in Hub's repositories as the program imports them."""
    repositories = {
        "checkpoint": (weights.CHECKPOINT, weights.CHECKPOINT_COMMIT),
        "engram": (weights.ENGRAM, weights.ENGRAM_COMMIT),
    }
    commit = weights.CHECKPOINT_COMMIT
    return f"CHECKPOINT_COMMIT = {commit!r}\nREPOSITORIES = {repositories!r}\n"
