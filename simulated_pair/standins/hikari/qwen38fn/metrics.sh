#!/bin/bash
# Stand-in for Hikari's metrics collector: keeps the last metrics beside its log.
set -euo pipefail

mkdir -p /var/log/qwen38fn
curl --silent --fail --max-time 2 --output /var/log/qwen38fn/metrics.prom http://127.0.0.1:8000/metrics ||
    echo "no metrics: the API does not answer"
