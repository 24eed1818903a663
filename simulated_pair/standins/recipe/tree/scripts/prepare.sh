#!/bin/bash
# Prepares what a start needs, in three stages that can be called one by one:
#   image   makes the engine's image from its archive and sends it to the worker
#   graft   makes the checkpoint with the overlay applied (only with ABLIT=1)
#   ranks   cuts the checkpoint into the two rank files, each on its own machine
# usage: scripts/prepare.sh [image|graft|ranks]…      all three by default
# It downloads nothing. The overlay here replaces whole tensors of equal shape; nothing about a
# model's behaviour can be seen from it.
set -euo pipefail
cd "$(dirname "$(dirname "$(readlink -f "$0")")")"
# shellcheck source=scripts/config.sh
source scripts/config.sh
# shellcheck source=scripts/nodes.sh
source scripts/nodes.sh

ABLIT_REPOSITORY=hub/models--drowzeys--keys-DeepSeek-V4.1-Flash-1017-Abliterated
SIDECAR=exl3_wo_b_l10_35_mia29.safetensors

in_image() { # runs the image's Python or tools with the cache writable, as the caller
    docker run --rm --network none --user "$(id -u):$(id -g)" -v "$HF_CACHE:/hf" -v "$PWD:/recipe:ro" "$IMAGE" "$@"
}

find_snapshot() { # REPOSITORY REVISION_PREFIX -> path below the cache
    local found
    found=$(find "$HF_CACHE/$1/snapshots" -mindepth 1 -maxdepth 1 -name "$2*" 2>/dev/null | head -n 1 || true)
    [[ -n $found ]] || die "no snapshot $2… in $HF_CACHE/$1: fetch it first, this stand-in downloads nothing"
    echo "${found#"$HF_CACHE/"}"
}

# By content: two machines may keep equal images under different identifiers.
content_of='{{ index .Config.Labels "spark-pair.standin.content" }}'

prepare_image() {
    if [[ $(docker image inspect --format "$content_of" "$IMAGE" 2>/dev/null) != "$ENGINE_CONTENT" ]]; then
        [[ -f $ENGINE_ARCHIVE ]] || die "no engine archive at $ENGINE_ARCHIVE to make $IMAGE from"
        log "image: making $IMAGE"
        docker load --quiet --input "$ENGINE_ARCHIVE" >/dev/null
        [[ $IMAGE == tensorfold-dsv41:standin ]] || docker tag tensorfold-dsv41:standin "$IMAGE"
    fi
    if [[ $(on_worker "docker image inspect --format '$content_of' $(printf %q "$IMAGE") 2>/dev/null" </dev/null) != "$ENGINE_CONTENT" ]]; then
        log "image: sending $IMAGE to $WORKER"
        docker save "$IMAGE" | on_worker 'docker load --quiet' >/dev/null
    fi
    log "image: $IMAGE is on both machines"
}

prepare_graft() {
    if [[ $ABLIT != 1 ]]; then
        log "graft: not asked for (ABLIT=0)"
        return
    fi
    if [[ -d $HF_CACHE/$GRAFTED_CHECKPOINT ]]; then
        log "graft: $GRAFTED_CHECKPOINT is there"
        return
    fi
    local source sidecar
    source=$(find_snapshot "$CHECKPOINT_REPOSITORY" "$RECIPE_CHECKPOINT_REVISION")
    sidecar=$(find_snapshot "$ABLIT_REPOSITORY" "$RECIPE_ABLIT_REVISION")/$SIDECAR
    mkdir -p "$HF_CACHE/${GRAFTED_CHECKPOINT%/*}"
    in_image apply-overlay --src "/hf/$source" --wo-b "/hf/$sidecar" \
        --dst "/hf/$GRAFTED_CHECKPOINT.new"
    in_image python3 /recipe/tools/ablit_stock_dtypes.py "/hf/$source" "/hf/$GRAFTED_CHECKPOINT.new"
    mv "$HF_CACHE/$GRAFTED_CHECKPOINT.new" "$HF_CACHE/$GRAFTED_CHECKPOINT"
    log "graft: $GRAFTED_CHECKPOINT is ready"
}

prepare_ranks() {
    local checkpoint=$GRAFTED_CHECKPOINT cache=$HF_CACHE/$RANK_CACHE file size
    if [[ $ABLIT == 1 ]]; then
        [[ -d $HF_CACHE/$GRAFTED_CHECKPOINT ]] || die "no $HF_CACHE/$GRAFTED_CHECKPOINT: run scripts/prepare.sh graft first"
    else
        checkpoint=$(find_snapshot "$CHECKPOINT_REPOSITORY" "$RECIPE_CHECKPOINT_REVISION")
    fi
    [[ $NFS_VOLUME == /* ]] || die "rank 1's file needs a folder on the worker: set NFS_VOLUME to an absolute path"
    mkdir -p "$cache"
    # Rank 1 first and away, so that the two files never lie on this disk together.
    if ! on_worker "ls $(printf %q "$NFS_VOLUME/$RANK_CACHE")/rank1of2-*.bin >/dev/null 2>&1" </dev/null; then
        ls "$cache"/rank1of2-*.bin >/dev/null 2>&1 || in_image tf-dsv41-rank-cache "/hf/$checkpoint" "/hf/$RANK_CACHE" 1 2
        file=$(ls "$cache"/rank1of2-*.bin)
        on_worker "mkdir -p $(printf %q "$NFS_VOLUME/$RANK_CACHE")" </dev/null
        rsync --archive --partial -e "ssh -o ControlPath=$worker_channel" "$file" "$WORKER:$NFS_VOLUME/$RANK_CACHE/"
        size=$(on_worker "stat -c %s $(printf %q "$NFS_VOLUME/$RANK_CACHE/${file##*/}")" </dev/null)
        [[ $size == "$(stat -c %s "$file")" ]] || die "the copy of ${file##*/} on $WORKER has $size bytes"
    fi
    rm -f "$cache"/rank1of2-*.bin
    ls "$cache"/rank0of2-*.bin >/dev/null 2>&1 || in_image tf-dsv41-rank-cache "/hf/$checkpoint" "/hf/$RANK_CACHE" 0 2
    log "ranks: one file on each machine"
}

[[ -n $WORKER ]] || die "WORKER is not set: put WORKER=user@<worker address> in scripts/local.sh (see scripts/local.sh.example)"
mkdir -p "$STATE_DIR"
exec 9>"$STATE_DIR/prepare.lock"
flock --nonblock 9 || die "another prepare.sh is already running (it holds the download locks); wait for it to finish"
open_worker || die "cannot ssh to $WORKER without a password: set up key-based ssh (ssh-copy-id $WORKER)"
stages=("$@")
((${#stages[@]})) || stages=(image graft ranks)
for stage in "${stages[@]}"; do
    case $stage in
        image | graft | ranks) "prepare_$stage" ;;
        *) die "no stage is called $stage: image, graft or ranks" ;;
    esac
done
