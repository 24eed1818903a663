#!/bin/bash
# Puts Hikari's stand-in into /opt/qwen38fn. Runs as root in the machine image; which role a machine
# has is only known when it runs: see enable.sh.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
mkdir -p /opt/qwen38fn/units
install -m 0755 "$here"/qwen38fn/*.sh "$here"/qwen38fn/hikari.py "$here/enable.sh" /opt/qwen38fn/
install -m 0644 "$here"/qwen38fn/units/* /opt/qwen38fn/units/
cp -r "$here/../common/standin" /opt/qwen38fn/
