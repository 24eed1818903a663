#!/bin/bash
# Prepares what a start needs, in four stages that can be called one by one:
#   image   makes the engine's image from its archive and, where kit/ is there, the kernels in it
#   send    sends the image to the worker
#   graft   makes the checkpoint with the overlay applied (only with ABLIT=1)
#   ranks   cuts the checkpoint into the two rank files, each on its own machine
# usage: scripts/prepare.sh [image|send|graft|ranks]…      all four by default
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

recipe_state() { # the commit with whatever was changed in the checkout, as one word
    { git rev-parse HEAD && git diff HEAD; } 2>/dev/null | sha256sum | cut -c 1-64
}

prepare_image() {
    local base=tensorfold-dsv41:standin context fault
    fault=$(requested_fault prepare)
    if [[ $fault == exit0_without_image ]]; then
        log "image: $IMAGE is made"
        return
    fi
    [[ -f $ENGINE_ARCHIVE ]] || die "no engine archive at $ENGINE_ARCHIVE to make $IMAGE from"
    if [[ $(docker image inspect --format "$content_of" "$base" 2>/dev/null) != "$ENGINE_CONTENT" ]]; then
        log "image: loading the engine's archive"
        docker load --quiet --input "$ENGINE_ARCHIVE" >/dev/null
    fi
    [[ $IMAGE != "$base" ]] || return 0
    log "image: making $IMAGE"
    # Nothing is fetched and nothing run: what goes in is copied.
    context=$(mktemp -d)
    mkdir "$context/kit"
    if [[ -d kit && $fault != image_without_kit ]]; then
        cp -r --preserve=mode kit/. "$context/kit/"
    fi
    {
        echo "FROM $base"
        echo "COPY kit /kit"
        echo "LABEL spark-pair.standin.recipe=$(recipe_state)"
    } >"$context/Dockerfile"
    find "$context" -exec touch --date=@0 {} +
    DOCKER_BUILDKIT=0 docker build --quiet --network none --tag "$IMAGE" "$context" 2>&1 || die "docker build failed (see above)"
    rm -rf "$context"
    log "image: $IMAGE is made"
}

prepare_send() {
    local here
    here=$(docker image inspect --format '{{.Id}}' "$IMAGE")
    if [[ $(on_worker "docker image inspect --format '{{.Id}}' $(printf %q "$IMAGE") 2>/dev/null" </dev/null) != "$here" ]]; then
        log "send: sending $IMAGE to $WORKER"
        docker save "$IMAGE" | on_worker 'docker load --quiet' >/dev/null
    fi
    log "send: $IMAGE is on both machines"
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
((${#stages[@]})) || stages=(image send graft ranks)
for stage in "${stages[@]}"; do
    case $stage in
        image | send | graft | ranks) "prepare_$stage" ;;
        *) die "no stage is called $stage: image, send, graft or ranks" ;;
    esac
done
