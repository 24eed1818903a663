"""Stands for nothing: saves the outer machine work. The other half is `simulated_archives_kept`.

Ansible sends every module as an archive, and Python compiles all of an archive each time it runs:
half of what a task costs, and the stories run tens of thousands. On a simulated machine the result
is kept, named by the source; the code that runs is the same.

Cannot show: how long a task takes on a real machine. A traceback may name another run's archive.

Every Python of the machine begins with this, so it imports nothing.
"""

import sys
import zipimport


def _first(path: str) -> zipimport.zipimporter:
    """Take the place of `zipimporter` until the first archive comes: most programs have none."""
    importer = zipimport.zipimporter(path)
    if _first in sys.path_hooks:
        sys.path_hooks[sys.path_hooks.index(_first)] = zipimport.zipimporter
        __import__("simulated_archives_kept").install()
    return importer


if zipimport.zipimporter in sys.path_hooks:
    sys.path_hooks[sys.path_hooks.index(zipimport.zipimporter)] = _first
