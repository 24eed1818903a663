#!/bin/bash
# Lets the machine's own Python (no environment made from it) keep what it has compiled out of archives.
# Runs as root in the machine image.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
place=/usr/lib/python3/dist-packages
install -m 0644 "$here"/simulated_archives*.py "$place"
echo 'import simulated_archives' >"$place/simulated_archives.pth"
# Compiles both, and shows that they can be used.
python3 -c 'import simulated_archives, simulated_archives_kept; simulated_archives_kept.install()'
