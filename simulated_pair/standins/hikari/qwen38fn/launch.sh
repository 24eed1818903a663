#!/bin/bash
# Stand-in for Hikari's launcher: starts one role when the machine has room for it.
# usage: launch.sh head|worker
set -euo pipefail

need_gib=90

available_gib() {
    local name value
    while read -r name value _; do
        if [[ $name == MemAvailable: ]]; then
            echo $((value / 1024 / 1024))
            return
        fi
    done </proc/meminfo
}

# A server that has just ended may still be on its way out.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    if (($(available_gib) >= need_gib)); then
        exec /usr/bin/python3 -I /opt/qwen38fn/hikari.py "$1"
    fi
    sleep 0.2
done
echo "[hikari] $1: only $(available_gib) GiB of memory are available, $need_gib are needed: CUDA out of memory" >&2
exit 1
