#!/bin/bash
# Installs the simulated machine's memory daemon. Runs as root in the machine image.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
install -D -m 0755 "$here/simulated-memory" /usr/local/sbin/simulated-memory
install -D -m 0644 "$here/simulated-memory.service" /etc/systemd/system/simulated-memory.service
mkdir -p /etc/systemd/system/sysinit.target.wants
ln -sf ../simulated-memory.service /etc/systemd/system/sysinit.target.wants/simulated-memory.service
