#!/bin/bash
# The shared package stays where it was copied; the other stand-ins take it from there.
# Runs as root in the machine image, and makes sure that the image's Python can use it.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here python3 -c 'import standin.service'
