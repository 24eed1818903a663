#!/bin/bash
# Stand-in for Hikari's watchdog: starts the head when it is stopped and its API does not answer.
# That is its whole knowledge, so whoever stops the head first finds it running again.
set -euo pipefail

if curl --silent --fail --max-time 1 --output /dev/null http://127.0.0.1:8000/v1/models; then
    exit 0
fi
state=$(systemctl show --property ActiveState --value qwen38fn-miaai-head.service)
if [[ $state == inactive || $state == failed ]]; then
    echo "the API does not answer and the head is $state: starting it"
    systemctl reset-failed qwen38fn-miaai-head.service 2>/dev/null || true
    systemctl start --no-block qwen38fn-miaai-head.service
fi
