#!/bin/bash
# Installs what a simulated machine shows under /sys and /proc/driver. Runs as root in the machine image.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
install -D -m 0755 "$here/simulated-sysfs" /usr/local/sbin/simulated-sysfs
install -D -m 0755 "$here/udevadm" /usr/local/bin/udevadm
install -D -m 0644 "$here/simulated-sysfs.service" /etc/systemd/system/simulated-sysfs.service
mkdir -p /etc/systemd/system/sysinit.target.wants
ln -sf ../simulated-sysfs.service /etc/systemd/system/sysinit.target.wants/simulated-sysfs.service
for service in systemd-networkd NetworkManager; do
    install -D -m 0644 "$here/true-sys.conf" "/etc/systemd/system/$service.service.d/true-sys.conf"
done
