# shellcheck shell=bash disable=SC2034 # most of these are for the scripts that source this file
# Settings, strongest first: the process environment, scripts/local.sh (bash, sourced), .env
# (KEY=value lines, never executed), the defaults below. A variable that is merely present in the
# caller's shell wins, even an empty one. Sourced with the recipe's directory as current directory.

declare -A given=()
while IFS= read -r name; do
    case $name in
        BASHOPTS | SHELLOPTS | _) ;;
        *) given[$name]=${!name} ;;
    esac
done < <(compgen -e)

if [[ -f scripts/local.sh ]]; then
    # shellcheck source=/dev/null
    source scripts/local.sh
fi
for name in "${!given[@]}"; do
    [[ ${!name-} == "${given[$name]}" ]] || export "$name=${given[$name]}"
done

if [[ -f .env ]]; then
    while IFS= read -r line || [[ -n $line ]]; do
        [[ $line =~ ^[[:space:]]*(export[[:space:]]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$ ]] || continue
        name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
        if [[ $value =~ ^\"([^\"]*)\" || $value =~ ^\'([^\']*)\' ]]; then
            value=${BASH_REMATCH[1]}
        else
            value=${value%%[[:space:]]#*}
            value=${value%"${value##*[![:space:]]}"}
        fi
        [[ -v $name ]] || printf -v "$name" '%s' "$value"
    done <.env
fi
unset given name line value

RECIPE_CHECKPOINT=Mia-AiLab/DeepSeek-V4.1-Flash-1017-EXL3-EAQ-v1-2.9-bpw
RECIPE_CHECKPOINT_REVISION=45ee5d0f
RECIPE_ABLIT_REVISION=0bdc2036

WORKER=${WORKER:-}
FABRIC_PEER=${FABRIC_PEER:-}
CONTAINER_NAME=${CONTAINER_NAME:-dsv41-tensorfold}
SERVED_NAME=${SERVED_NAME:-DeepSeek-V4.1-Flash-1017}
HOST=${HOST:-0.0.0.0}
PORT=${PORT:-8888}
MASTER_PORT=${MASTER_PORT:-29620}
CONTEXT=${CONTEXT:-1048576}
PARALLEL=${PARALLEL:-4}
ROUND_ROWS=${ROUND_ROWS:-16}
GRAPHS=${GRAPHS:-1}
PREFILL_INTERLEAVE_MS=${PREFILL_INTERLEAVE_MS:-0}
MAX_TOKENS=${MAX_TOKENS:-32768}
ABLIT=${ABLIT:-0}
THINKING=${THINKING:-1}
REASONING_EFFORT=${REASONING_EFFORT:-high}
API_KEY=${API_KEY:-0}
PREPARE=${PREPARE:-auto}
DRY_RUN=${DRY_RUN:-0}
NCCL_RAILS=${NCCL_RAILS:-2}
NCCL_CHANNELS=${NCCL_CHANNELS:-4}
MEMORY_GATE_GIB=112
MEMGUARD_GIB=2.5
WAIT_TIMEOUT=${WAIT_TIMEOUT:-1800}
STOP_TIMEOUT=${STOP_TIMEOUT:-30}
LOG_KEEP=${LOG_KEEP:-10}
STATE_DIR=${STATE_DIR:-$HOME/.cache/dsv41-tensorfold/state}
LOG_DIR=${LOG_DIR:-$HOME/.cache/dsv41-tensorfold/logs}
HF_CACHE=${HF_CACHE:-${HF_HOME:-$HOME/.cache/huggingface}}
# On the worker: an absolute path is a folder of its own disk, anything else the name of a volume.
NFS_VOLUME=${NFS_VOLUME:-dsv41-huggingface}
WORKER_ENGRAM_DIR=${WORKER_ENGRAM_DIR:-}
MEMGUARD_REMOTE_DIR=${MEMGUARD_REMOTE_DIR:-}
# The image is made from the engine's archive; its tag names the archive's content.
ENGINE_ARCHIVE=${ENGINE_ARCHIVE:-/opt/standins/engine-image.tar}
ENGINE_CONTENT=$(cat "${ENGINE_ARCHIVE%.tar}.content" 2>/dev/null || echo unknown)
IMAGE=${IMAGE:-tensorfold-dsv41:exl3-tp2-${ENGINE_CONTENT:0:12}}

# Places below the cache, the same on both machines; /hf in the containers.
derived=tensorfold-dsv41/$RECIPE_CHECKPOINT_REVISION
if [[ $ABLIT == 1 ]]; then
    derived+=-ablit-$RECIPE_ABLIT_REVISION
fi
GRAFTED_CHECKPOINT=$derived/checkpoint
RANK_CACHE=$derived/checkpoint/rank-cache
CHECKPOINT_REPOSITORY=hub/models--${RECIPE_CHECKPOINT/\//--}
ENGRAM_REPOSITORY=hub/models--deepseek-ai--DeepSeek-V4.1-Flash-1017
unset derived

# Misbehaviour that a test asks this stand-in for: what is asked of start.sh, stop.sh or prepare.sh.
requested_fault() { # start|stop|prepare
    local file=/srv/simulation/faults/recipe.json
    if [[ -f $file ]]; then
        jq --raw-output --arg script "$1" '.[$script] // empty' "$file"
    fi
}
