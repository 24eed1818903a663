#!/bin/bash
# Kills the local rank before the machine runs out of memory: weights are driver allocations in no
# process's size, so the kernel would pick others first and the machine would freeze.
# usage: memguard.sh CONTAINER_ID LIMIT_KIB LOG
# Samples MemAvailable every second, acts after two low samples in a row, ends with the container.
# Known weakness: any other process that takes the memory makes it kill a blameless server.
set -euo pipefail

container=$1 limit=$2 log=$3

docker wait "$container" >/dev/null 2>&1 &
waiting=$!
low=0
while kill -0 "$waiting" 2>/dev/null; do
    available=
    while read -r name value _; do
        if [[ $name == MemAvailable: ]]; then
            available=$value
            break
        fi
    done </proc/meminfo
    if [[ -n $available && $available -lt $limit ]]; then
        low=$((low + 1))
    else
        low=0
    fi
    if ((low >= 2)); then
        echo "$(date +%FT%T) MemAvailable=$available kB: docker kill ${container:0:12}" >>"$log"
        docker kill "$container" >/dev/null 2>&1 || true
        break
    fi
    sleep 1
done
kill "$waiting" 2>/dev/null || true
