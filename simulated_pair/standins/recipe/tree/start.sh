#!/bin/bash
# Starts DeepSeek over two machines: rank 1 on the worker, rank 0 here.
# usage: ./start.sh [restart] [extra arguments for tensorfold serve]
#        ./start.sh help
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
# shellcheck source=scripts/config.sh
source scripts/config.sh
# shellcheck source=scripts/nodes.sh
source scripts/nodes.sh

mode=start
case ${1:-} in
    help | -h | --help)
        sed -n '2,4s/^# //p' start.sh
        exit 0
        ;;
    restart)
        mode=restart
        shift
        ;;
esac
extra=("$@")

require() { # VARIABLE REGEX RULE
    [[ ${!1} =~ ^($2)$ ]] || die "$1 is $3, not ${!1}"
}

validate() {
    [[ -n $WORKER ]] ||
        die "WORKER is not set: put WORKER=user@<worker address> in scripts/local.sh (see scripts/local.sh.example)"
    local name
    for name in ABLIT THINKING GRAPHS API_KEY DRY_RUN; do
        require "$name" '[01]' '0 or 1'
    done
    require PREPARE 'auto|0|1' 'auto, 0 or 1'
    require PARALLEL '[1-8]' 'an integer from 1 to 8'
    require ROUND_ROWS '16' '16 (the kernels of this engine know no other)'
    require CONTEXT '[1-9][0-9]{0,6}' 'an integer up to 1048576'
    ((CONTEXT <= 1048576)) || die "CONTEXT is an integer up to 1048576, not $CONTEXT"
    require PREFILL_INTERLEAVE_MS '0|[1-9][0-9]{0,4}' 'a number of milliseconds'
    require MAX_TOKENS '[1-9][0-9]{0,6}' 'a positive integer'
    for name in PORT MASTER_PORT; do
        require "$name" '[1-9][0-9]{0,4}' 'a port number'
    done
    for name in WAIT_TIMEOUT STOP_TIMEOUT LOG_KEEP NCCL_CHANNELS; do
        require "$name" '[1-9][0-9]{0,4}' 'a positive integer'
    done
    require NCCL_RAILS '[12]' '1 or 2'
    require REASONING_EFFORT 'none|minimal|low|medium|high|xhigh|max' 'none, minimal, low, medium, high, xhigh or max'
    command -v docker >/dev/null || die "docker is not installed"
}

running() { # true|false|absent
    [[ $1 == true ]]
}

container_running='{{.State.Running}}'
# Docker prints an empty line for a container that is not there.
local_state() {
    local state
    state=$(docker container inspect --format "$container_running" "$CONTAINER_NAME" 2>/dev/null || true)
    echo "${state:-absent}"
}
worker_state() {
    local state
    state=$(on_worker "docker container inspect --format '$container_running' $(printf %q "$CONTAINER_NAME") 2>/dev/null || true" </dev/null)
    echo "${state:-absent}"
}

api() { # PATH [CURL_ARGUMENT…]; the key goes through a file, never through an argument
    local path=$1
    shift
    if [[ $API_KEY == 1 ]]; then
        curl -sf --header @<(printf 'Authorization: Bearer %s\n' "$(sed -n '/^#/d; s/^[^:]*: *//p' "$STATE_DIR/api-key" | head -n 1)") \
            "$@" "http://127.0.0.1:$PORT$path"
    else
        curl -sf "$@" "http://127.0.0.1:$PORT$path"
    fi
}

# -- what both ranks are started with -------------------------------------------------------------
choose_model() {
    local snapshot
    model=/opt/engine/no-checkpoint
    snapshot=$(find "$HF_CACHE/$CHECKPOINT_REPOSITORY/snapshots" -mindepth 1 -maxdepth 1 \
        -name "$RECIPE_CHECKPOINT_REVISION*" 2>/dev/null | head -n 1 || true)
    if [[ $ABLIT == 1 && -d $HF_CACHE/$GRAFTED_CHECKPOINT ]]; then
        model=/hf/$GRAFTED_CHECKPOINT
    elif [[ -n $snapshot ]]; then
        model=/hf/${snapshot#"$HF_CACHE/"}
    fi
    if [[ $model == /hf/* && ! -e $HF_CACHE/${model#/hf/}/config.json ]]; then
        die "no config.json in $HF_CACHE/${model#/hf/}: the checkpoint is not whole"
    fi
    if [[ $model != /hf/* ]]; then
        warn "no checkpoint in $HF_CACHE: only the rank files are there"
    fi
}

choose_engram() {
    engram_here=$(find "$HF_CACHE/$ENGRAM_REPOSITORY/snapshots" -mindepth 1 -maxdepth 1 2>/dev/null | sort | head -n 1 || true)
    if [[ -z $engram_here ]]; then
        warn "no Engram tables in $HF_CACHE: output will be degraded"
    fi
}

make_commands() {
    local name rank devices gid interface infiniband hf engram=()
    serve=(tensorfold serve "$model" --host "$HOST" --port "$PORT" --name "$SERVED_NAME"
        --context "$CONTEXT" --parallel "$PARALLEL")
    if [[ $THINKING == 1 ]]; then serve+=(--thinking); else serve+=(--no-thinking); fi
    serve+=(--max-tokens "$MAX_TOKENS" --temperature 1.0 --top-p 0.95 --top-k 20 --backend cuda)
    if [[ $API_KEY == 1 ]]; then serve+=(--api-key-file /run/api-key); fi
    serve+=(${extra[@]+"${extra[@]}"})
    follow=(tf-dsv41-lanes "$model" "/hf/$RANK_CACHE" 1 2 "$link_address" "$MASTER_PORT" /kit
        --pool "$CONTEXT" --rdma "$worker_devices" --graphs "$GRAPHS" --side 1 --prefetch 1 --aio 1)

    local from_shell=()
    while IFS= read -r name; do
        case $name in
            TF_DS_* | TF_RDMA_* | NCCL_*)
                case $name in NCCL_RAILS | NCCL_CHANNELS) continue ;; esac
                from_shell+=(-e "$name=${!name}")
                ;;
        esac
    done < <(compgen -e)

    for rank in 0 1; do
        if ((rank == 0)); then
            devices=$head_devices gid=$head_gid interface=$link_interface hf=$HF_CACHE:/hf
            infiniband=$(ls -d /dev/infiniband 2>/dev/null || true)
        else
            devices=$worker_devices gid=$worker_gid interface=$worker_interface hf=$NFS_VOLUME:/hf:ro
            infiniband=
            if ((worker_reachable)); then
                infiniband=$(on_worker 'ls -d /dev/infiniband 2>/dev/null || true' </dev/null)
            fi
        fi
        local command=(docker run -d --name "$CONTAINER_NAME" --gpus all --ipc=host --network host --shm-size 16g)
        if [[ -n $infiniband ]]; then command+=(--device /dev/infiniband); fi
        command+=(--cap-add IPC_LOCK --ulimit stack=67108864 -e HF_HUB_OFFLINE=1
            -e TF_TP_WORLD=2 -e "TF_TP_MASTER=$link_address" -e "TF_TP_PORT=$MASTER_PORT"
            -e "TF_RDMA_DEVICES=$devices" -e "TF_DS_GRAPHS=$GRAPHS" -e "TF_DS_ROUND_ROWS=$ROUND_ROWS"
            -e "TF_DS_STREAMS=$PARALLEL" -e "TF_DS_PREFILL_INTERLEAVE_MS=$PREFILL_INTERLEAVE_MS"
            -e "TF_DS_REASONING_EFFORT=$REASONING_EFFORT" -e TF_DS_HC_SIDE=1 -e TF_DS_L2_PREFETCH=1
            -e TF_DS_ENGRAM_AIO=1 -e TF_DS_REPLAY_FLOOR=1 -e TF_DS_KIT=/kit
            -e "TF_DS_RANK_CACHE=/hf/$RANK_CACHE"
            -e "NCCL_SOCKET_IFNAME=$interface" -e "NCCL_IB_HCA=$devices" -e "NCCL_IB_GID_INDEX=$gid"
            -e "NCCL_MIN_NCHANNELS=$NCCL_CHANNELS" -e "NCCL_MAX_NCHANNELS=$NCCL_CHANNELS")
        case $fault in
            unknown_variable) command+=(-e TF_DS_SPILL=1) ;;
            differs_from_dry_run | other_value) if ((rank == 1)); then command+=(-e TF_DS_GRAPHS=0); fi ;;
        esac
        # The caller's own variables come last and win: whoever exports one bypasses the values above.
        command+=(${from_shell[@]+"${from_shell[@]}"} -v "$hf")
        if ((rank == 0)) && [[ -n $engram_here ]]; then
            command+=(-e "TF_DS_ENGRAM=/hf/${engram_here#"$HF_CACHE/"}")
        fi
        if ((rank == 1)) && [[ -n $WORKER_ENGRAM_DIR ]]; then
            if ((!worker_reachable)) || on_worker "test -d $(printf %q "$WORKER_ENGRAM_DIR")" </dev/null; then
                engram=(-e TF_DS_ENGRAM=/engram -v "$WORKER_ENGRAM_DIR:/engram:ro")
            else
                warn "no Engram tables in $WORKER_ENGRAM_DIR on the worker: output will be degraded"
            fi
            command+=(${engram[@]+"${engram[@]}"})
        fi
        if [[ -d /srv/simulation ]]; then
            # Stand-in only: where the engine finds its faults and keeps its ledger.
            command+=(--label standin.simulation=/srv/simulation -v /srv/simulation:/srv/simulation)
        fi
        if ((rank == 0)); then
            if [[ $API_KEY == 1 ]]; then command+=(-v "$STATE_DIR/api-key:/run/api-key:ro"); fi
            rank0_command=("${command[@]}" "$IMAGE" "${serve[@]}")
        else
            rank1_command=("${command[@]}" "$IMAGE" "${follow[@]}")
        fi
    done
    rank1_line="mkdir -p \$HOME/.cache/dsv41-tensorfold"
    if [[ $NFS_VOLUME == /* ]]; then rank1_line+=" $(printf %q "$NFS_VOLUME")"; fi
    rank1_line+=" && $(printf '%q ' "${rank1_command[@]}")"
}

make_api_key() {
    if [[ $API_KEY == 1 && ! -s $STATE_DIR/api-key ]]; then
        (umask 077 && printf 'recipe: %s\n' "$(head -c 24 /dev/urandom | base64 | tr -d '/+=')" >"$STATE_DIR/api-key")
    fi
}

# -- checks ---------------------------------------------------------------------------------------
prepared_state() {
    echo "model=$RECIPE_CHECKPOINT@$RECIPE_CHECKPOINT_REVISION ablit=$ABLIT image=$IMAGE content=$ENGINE_CONTENT worker_host=${WORKER#*@}"
}

setup() {
    log "[1/5] Setup"
    if [[ $PREPARE == 0 ]]; then
        log "Ready: prepared by hand (PREPARE=0)"
    elif [[ $PREPARE == 1 || $(cat "$STATE_DIR/prepared" 2>/dev/null) != "$(prepared_state)" ]]; then
        if [[ $DRY_RUN == 1 ]]; then
            log "DRY_RUN: scripts/prepare.sh would run now (not ready yet)"
        else
            ./scripts/prepare.sh 9>&- || die "scripts/prepare.sh failed (see above); nothing was started"
            prepared_state >"$STATE_DIR/prepared"
        fi
    else
        log "Ready: nothing to prepare"
    fi
    docker image inspect "$IMAGE" >/dev/null 2>&1 ||
        die "image $IMAGE missing: PREPARE=$PREPARE skipped scripts/prepare.sh, which would build it"
    if ((worker_reachable)); then
        on_worker "docker image inspect $(printf %q "$IMAGE") >/dev/null 2>&1" </dev/null ||
            die "image $IMAGE missing on the worker: run scripts/prepare.sh send, or copy it there"
    fi
}

check_arguments() {
    docker run --rm --network none --label standin.arguments=check "$IMAGE" tensorfold check-arguments "${serve[@]:2}" ||
        die "tensorfold serve rejects these arguments (see above); nothing was changed"
}

available_gib() { awk '/^MemAvailable:/ {print int($2 / 1024 / 1024)}' /proc/meminfo; }

check_memory() {
    local here there
    here=$(available_gib)
    there=$(on_worker "$(declare -f available_gib); available_gib" </dev/null)
    ((here >= MEMORY_GATE_GIB)) ||
        die "MemAvailable $here GiB < $MEMORY_GATE_GIB GiB on $(hostname): find what holds the memory (free -h, docker ps)"
    ((there >= MEMORY_GATE_GIB)) ||
        die "MemAvailable $there GiB < $MEMORY_GATE_GIB GiB on $WORKER: find what holds the memory (free -h, docker ps)"
}

port_in_use() { [[ -n $(ss -Hltn "sport = :$PORT") ]]; }

checks() {
    local rank0=$1 rank1=$2
    log "[2/5] Checks"
    check_arguments
    if [[ $mode == restart ]]; then
        ./stop.sh
    elif running "$rank0" || running "$rank1"; then
        if running "$rank0"; then
            warn "Only rank 0 is running (here): stopping it, then starting both ranks"
        else
            warn "Only rank 1 is running (on $WORKER): stopping it, then starting both ranks"
        fi
        ./stop.sh
    elif [[ $rank0 != absent || $rank1 != absent ]]; then
        log "leftover containers: keeping their logs, then removing them"
        ./stop.sh
    fi
    if port_in_use; then
        die "port $PORT is already in use: $(ss -Hltnp "sport = :$PORT" | awk '{print $4, $6}')"
    fi
    check_memory
}

# -- the start itself -----------------------------------------------------------------------------
guard() { # starts memguard on both machines; descriptor 9 is the lock
    local limit directory=${MEMGUARD_REMOTE_DIR:-}
    limit=$(awk -v gib="$MEMGUARD_GIB" 'BEGIN {print int(gib * 1024 * 1024)}')
    setsid scripts/memguard.sh "$rank0_id" "$limit" "$STATE_DIR/memguard.log" </dev/null >/dev/null 2>&1 9>&- &
    if [[ -n $directory ]]; then
        directory=$(printf %q "$directory")
    else
        directory="\$HOME/.cache/dsv41-tensorfold"
    fi
    on_worker "mkdir -p $directory && cat >$directory/memguard.sh && chmod 0755 $directory/memguard.sh &&
        { setsid $directory/memguard.sh $rank1_id $limit $directory/memguard.log </dev/null >/dev/null 2>&1 & }" \
        <scripts/memguard.sh || warn "memguard could not be started on $WORKER"
}

launch() {
    log "[3/5] Launch"
    rank1_id=$(on_worker "$rank1_line" </dev/null) || die "could not start rank 1 on $WORKER"
    [[ $fault != die_half_way ]] || die "the stand-in was asked to die half way: rank 1 runs, rank 0 does not"
    rank0_id=$("${rank0_command[@]}") || die "could not start rank 0"
    guard
}

last_logs() {
    echo "--- rank 0, last lines" >&2
    docker logs --tail 25 "$CONTAINER_NAME" >&2 2>&1 || true
    echo "--- rank 1, last lines" >&2
    on_worker "docker logs --tail 25 $(printf %q "$CONTAINER_NAME")" >&2 2>&1 </dev/null || true
}

load() {
    log "[4/5] Loading"
    local began=$SECONDS exited next=0 state
    exited='{{.State.Running}} {{.State.ExitCode}}'
    until api /v1/models --max-time 5 >/dev/null 2>&1; do
        state=$(docker container inspect --format "$exited" "$CONTAINER_NAME" 2>/dev/null || true)
        state=${state:-false gone}
        if [[ $state != true* ]]; then
            last_logs
            die "rank 0 exited (code ${state#* }) before it was ready"
        fi
        if ((SECONDS >= next)); then
            next=$((SECONDS + 1))
            state=$(on_worker "docker container inspect --format '$exited' $(printf %q "$CONTAINER_NAME")" </dev/null 2>/dev/null || true)
            state=${state:-false gone}
            if [[ $state != true* ]]; then
                last_logs
                die "rank 1 on $WORKER exited (code ${state#* }) before the server was ready"
            fi
        fi
        if ((SECONDS - began >= WAIT_TIMEOUT)); then
            last_logs
            die "not ready after ${WAIT_TIMEOUT}s (WAIT_TIMEOUT); the ranks are still running: docker logs -f $CONTAINER_NAME"
        fi
        sleep 0.3
    done
    docker logs "$CONTAINER_NAME" 2>&1 | grep -F '[tensorfold] serving' || true
}

smoke_test() {
    log "[5/5] Smoke test"
    local reply text body
    body='{"messages": [{"role": "user", "content": "Reply with OK."}], "max_tokens": 32, "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": false}}'
    if ! reply=$(api /v1/chat/completions --show-error --max-time 15 --header 'Content-Type: application/json' --data "$body" 2>&1); then
        die "the smoke test request failed (${reply:-no answer}); the ranks are still running"
    fi
    text=$(jq --raw-output '.choices[0].message.content // ""' <<<"$reply")
    if [[ -z ${text//[[:space:]]/} ]]; then
        die "the smoke test request failed (empty text); the ranks are still running"
    fi
    if [[ ${#text} -gt 3 && -z ${text//"${text:0:1}"/} ]]; then
        die "the smoke test request failed (one repeated character); the ranks are still running"
    fi
    log "it says: $text"
}

print_commands() {
    if [[ $fault == unparsable ]]; then
        echo "[dry-run] both ranks: docker compose --file docker-compose.yml up --detach"
        return
    fi
    if [[ $fault == other_image ]]; then rank1_line=${rank1_line//"$IMAGE"/"${IMAGE%:*}:another"}; fi
    echo "[dry-run] rank 1 on $WORKER:"
    echo "  $rank1_line"
    echo "[dry-run] rank 0 here:"
    echo "  $(printf '%q ' "${rank0_command[@]}")"
}

main() {
    local rank0 rank1=absent answering
    validate
    mkdir -p "$STATE_DIR" "$LOG_DIR" "$HF_CACHE"
    exec 9>"$STATE_DIR/start.lock"
    flock --nonblock 9 || die "another ./start.sh is already running; wait for it to finish"
    if [[ $DRY_RUN == 1 ]]; then
        fault=$(requested_fault dry_run)
        if [[ $fault == one_rail ]]; then NCCL_RAILS=1; fi
        log "DRY_RUN=1: printing the docker commands; nothing is stopped, started or prepared"
    else
        fault=$(requested_fault start)
        if [[ $fault == hang ]]; then exec sleep infinity; fi
        if [[ $fault == exit0_without_serving ]]; then exit 0; fi
    fi
    worker_reachable=1
    if ! open_worker; then
        [[ $DRY_RUN == 1 ]] ||
            die "cannot ssh to $WORKER without a password: set up key-based ssh (ssh-copy-id $WORKER)"
        warn "cannot ssh to $WORKER without a password; its values are left open"
        worker_reachable=0
    fi
    rank0=$(local_state)
    if ((worker_reachable)); then rank1=$(worker_state); fi
    if [[ $mode == start && $DRY_RUN == 0 ]] && running "$rank0" && running "$rank1"; then
        answering=$(api /v1/models --max-time 5 2>/dev/null | jq --raw-output '.data[0].id' || true)
        log "$CONTAINER_NAME is already running on both Sparks (model: ${answering:-not answering yet}, port $PORT): nothing to do."
        exit 0
    fi
    setup
    choose_model
    choose_engram
    if ((worker_reachable)); then
        find_link
    else
        link_address="<WORKER:link address>" link_interface="<WORKER:interface>" worker_interface="<WORKER:interface>"
        head_devices="<WORKER:devices>" worker_devices="<WORKER:devices>" head_gid="<WORKER:gid>" worker_gid="<WORKER:gid>"
    fi
    make_api_key
    make_commands
    if [[ $DRY_RUN == 1 ]]; then
        check_arguments
        if running "$rank0" || running "$rank1"; then
            log "DRY_RUN: $CONTAINER_NAME is running; a real start would stop it first (./stop.sh)"
        elif port_in_use; then
            log "DRY_RUN: port $PORT is in use now"
        fi
        print_commands
        exit 0
    fi
    checks "$rank0" "$rank1"
    launch
    load
    smoke_test
    [[ $fault != exit1_ranks_running ]] || die "the stand-in was asked to fail; the ranks are still running"
    log "✔ $SERVED_NAME is now LIVE! on port $PORT"
}

main
