#!/bin/bash
# Makes the weights of a pair that was prepared by hand, to be laid into the accounts' homes when a machine is
# prepared. Runs as root in the machine image; the Hub's and the engine's stand-ins lie beside this one there.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
python3 -I "$here/make.py" "$here/weights"
