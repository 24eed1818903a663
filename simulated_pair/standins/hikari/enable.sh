#!/bin/bash
# Gives this machine its part of Hikari: installs, enables and starts the units.
# usage: enable.sh head-of-hikari|worker-of-hikari PEER_ADDRESS
# PEER_ADDRESS is the other machine's address on the cable. Safe to run again.
set -euo pipefail

role=${1:?usage: enable.sh head-of-hikari|worker-of-hikari PEER_ADDRESS}
peer=${2:?usage: enable.sh head-of-hikari|worker-of-hikari PEER_ADDRESS}
case $role in
    head-of-hikari)
        enabled=(qwen38fn-miaai-head.service qwen38fn-miaai-head-watchdog.timer qwen38fn-miaai-metrics.timer)
        called=(qwen38fn-miaai-head-watchdog.service qwen38fn-miaai-metrics.service)
        ;;
    worker-of-hikari)
        enabled=(qwen38fn-miaai-worker.service)
        called=()
        ;;
    *)
        echo "enable.sh: $role is neither head-of-hikari nor worker-of-hikari" >&2
        exit 2
        ;;
esac

echo "QWEN38FN_PEER=$peer" >/opt/qwen38fn/pair.env.new
mv /opt/qwen38fn/pair.env.new /opt/qwen38fn/pair.env
for unit in "${enabled[@]}" "${called[@]}"; do
    cmp --silent "/opt/qwen38fn/units/$unit" "/etc/systemd/system/$unit" ||
        install -m 0644 "/opt/qwen38fn/units/$unit" "/etc/systemd/system/$unit"
done
systemctl daemon-reload
systemctl enable --quiet "${enabled[@]}"
systemctl start "${enabled[@]}"
