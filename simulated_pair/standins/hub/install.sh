#!/bin/bash
# Puts the Hub's stand-in on a simulated machine. Runs as root in the machine image.
# The unit is not enabled: a machine has no Hub until somebody starts one.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
install -D -m 0755 "$here/simulated-hub" /usr/local/bin/simulated-hub
install -D -m 0644 "$here/simulated-hub.service" /etc/systemd/system/simulated-hub.service
simulated-hub --help >/dev/null
