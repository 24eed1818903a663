#!/bin/bash
# Puts the NVIDIA and RDMA tools' stand-ins on a simulated machine. Runs as root in its image.
# What they cannot show: there is no GPU and no RDMA device. What /sys says of them is the sysfs
# stand-in's.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
for tool in nvidia-smi nvidia-ctk nvidia-container-runtime nvidia-container-runtime-hook \
    rdma ibdev2netdev ib_write_bw; do
    install -m 0755 "$here/$tool" "/usr/bin/$tool"
done
# As a machine comes: the runtime is registered, beside a setting of the operator's own.
install -D -m 0644 "$here/daemon.json" /etc/docker/daemon.json
