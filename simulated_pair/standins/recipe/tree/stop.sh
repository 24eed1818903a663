#!/bin/bash
# Stops both ranks, keeps each one's log on its own machine, removes the containers.
# usage: ./stop.sh
# Exits 0 whatever happens: an unreachable worker or a failed removal is only said.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
# shellcheck source=scripts/config.sh
source scripts/config.sh
# shellcheck source=scripts/nodes.sh
source scripts/nodes.sh

if [[ $DRY_RUN == 1 ]]; then
    log "DRY_RUN=1: would stop $CONTAINER_NAME here and on ${WORKER:-no worker}; nothing is stopped"
    exit 0
fi
if [[ $(requested_fault stop) == exit0_nothing_done ]]; then
    exit 0
fi

cut_off=$(curl -sf --max-time 2 "http://127.0.0.1:$PORT/health" 2>/dev/null | jq '.live.requests_running // 0' || true)
if ((${cut_off:-0} > 0)); then
    warn "$cut_off request(s) still running will be cut off"
fi

stop_rank1() {
    [[ -n $WORKER ]] || return 0
    if ! open_worker; then
        warn "cannot reach the worker ($WORKER) over ssh: rank 1 was left alone"
        echo unreachable >"$answers/rank1"
        return 0
    fi
    # Its own home directory decides where its log goes.
    on_worker_call machine_retire "$CONTAINER_NAME" 1 "$STOP_TIMEOUT" "" "$LOG_KEEP" >"$answers/rank1" ||
        warn "rank 1 on $WORKER could not be stopped or removed"
}

answers=$(mktemp -d)
(stop_rank1) &
machine_retire "$CONTAINER_NAME" 0 "$STOP_TIMEOUT" "$LOG_DIR" "$LOG_KEEP" >"$answers/rank0" ||
    warn "rank 0 could not be stopped or removed"
wait
rank0=$(cat "$answers/rank0")
rank1=$(cat "$answers/rank1" 2>/dev/null || true)
rm -rf "$answers"

if [[ $rank0 == absent && $rank1 == absent ]]; then
    log "No container named $CONTAINER_NAME on either Spark: nothing to stop"
    exit 0
fi
[[ $rank0 == absent ]] || log "rank 0 stopped here; ${rank0:-its log was not saved}"
[[ $rank1 == absent || $rank1 == unreachable ]] || log "rank 1 stopped on $WORKER; ${rank1:-its log was not saved}"
exit 0
