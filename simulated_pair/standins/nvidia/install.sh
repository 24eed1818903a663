#!/bin/bash
# Puts the NVIDIA and RDMA tools' stand-ins on a simulated machine. Runs as root in its image.
# What they cannot show: there is no GPU, no RDMA device and nothing under /sys. Programs of this
# project that look there see a machine without them; the recipe's stand-in asks
# simulated-rdma-sysfs for a tree of the same shape instead.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
for tool in nvidia-smi nvidia-ctk nvidia-container-runtime nvidia-container-runtime-hook \
    simulated-rdma-sysfs rdma ibdev2netdev; do
    install -m 0755 "$here/$tool" "/usr/bin/$tool"
done
