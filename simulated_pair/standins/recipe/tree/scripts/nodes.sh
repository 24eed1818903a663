# shellcheck shell=bash
# The two machines: ssh to the worker, the link between them, a rank's container.
# Functions from machine_* run on either machine; for the worker their text is sent along.

script=${0##*/}
log() { echo "[$script] $*"; }
warn() { echo "[$script] WARN: $*" >&2; }
die() {
    echo "[$script] ERROR: $*" >&2
    exit 1
}

worker_channel=

# One connection for all that follows. Nothing may inherit the lock on descriptor 9: a process that
# stays behind would hold it for ever.
open_worker() {
    local directory
    directory=$(mktemp -d /tmp/dsv41-ssh.XXXXXX)
    worker_channel=$directory/channel
    trap close_worker EXIT
    if ! ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ControlMaster=yes \
        -o ControlPath="$worker_channel" -o ControlPersist=yes -fN "$WORKER" \
        </dev/null >/dev/null 2>"$directory/error" 9>&-; then
        close_worker
        return 1
    fi
}

close_worker() {
    if [[ -n $worker_channel ]]; then
        ssh -o ControlPath="$worker_channel" -O exit "$WORKER" 2>/dev/null || true
        rm -rf "${worker_channel%/*}"
        worker_channel=
    fi
}

on_worker() { # SHELL_COMMAND
    ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 \
        -o ControlPath="$worker_channel" "$WORKER" "$1"
}

# Runs one of this file's machine_* functions on the worker.
on_worker_call() { # FUNCTION ARGUMENT…
    on_worker "$(declare -f machine_interface machine_rail machine_rails machine_retire)
$(printf '%q ' "$@")" </dev/null
}

machine_interface() { # PEER_ADDRESS -> interface, own address, gateway or "-"
    ip -o -4 route get "$1" 2>/dev/null | awk '{
        via = "-"
        for (i = 1; i < NF; i++) {
            if ($i == "dev") device = $(i + 1)
            if ($i == "src") source = $(i + 1)
            if ($i == "via") via = $(i + 1)
        }
        print device, source, via
    }'
}

machine_rail() { # INTERFACE -> device, GID index, IPv4 address; fails without a RoCE v2 GID
    local interface=$1 device address gid index bytes
    for device in "/sys/class/net/$interface/device/infiniband"/*; do break; done
    [[ -e $device ]] || return 1
    device=${device##*/}
    address=$(ip -o -4 address show dev "$interface" | awk '{sub("/.*", "", $4); print $4; exit}')
    [[ -n $address ]] || return 1
    IFS=. read -ra bytes <<<"$address"
    gid=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "${bytes[@]}")
    for index in {0..31}; do
        [[ -e /sys/class/infiniband/$device/ports/1/gids/$index ]] || break
        if [[ $(cat "/sys/class/infiniband/$device/ports/1/gids/$index") == "$gid" ]] &&
            grep -q v2 "/sys/class/infiniband/$device/ports/1/gid_attrs/types/$index" 2>/dev/null; then
            echo "$device $index $address"
            return 0
        fi
    done
    return 1
}

# The link's interface and its twin on the other PCIe link, which has the same port in its name.
machine_rails() { # PEER_ADDRESS -> lines: interface device gid address mtu
    local first gateway port interface facts device index address seen=
    read -r first _ gateway <<<"$(machine_interface "$1")"
    [[ -n $first && $gateway == - ]] || return 0
    port=$(grep -oE 'f[0-9]+np[0-9]+$' <<<"$first" || true)
    for interface in "$first" $(ls /sys/class/net); do
        if [[ -n $seen && $interface == "$first" ]]; then continue; fi
        [[ $interface == "$first" || (-n $port && $interface == *"$port") ]] || continue
        if facts=$(machine_rail "$interface"); then
            read -r device index address <<<"$facts"
            echo "$interface $device $index $address $(cat "/sys/class/net/$interface/mtu")"
        fi
        seen=1
    done
}

# Stops a rank's container, keeps its log, removes it. Says "absent" when there is none.
machine_retire() { # NAME RANK STOP_SECONDS LOG_DIRECTORY LOGS_TO_KEEP
    local name=$1 rank=$2 seconds=$3 logs=${4:-$HOME/.cache/dsv41-tensorfold/logs} keep=$5
    local stamp file number old
    if ! docker container inspect "$name" >/dev/null 2>&1; then
        echo absent
        return 0
    fi
    docker stop --time "$seconds" "$name" >/dev/null || return 1
    mkdir -p "$logs"
    stamp=$(date +%Y%m%d-%H%M%S)
    file=$logs/$stamp-rank$rank.log.gz
    for ((number = 1; ; number++)); do
        [[ -e $file ]] || break
        file=$logs/$stamp.$number-rank$rank.log.gz
    done
    if docker logs --timestamps "$name" 2>&1 | gzip >"$file"; then
        echo "log: $file"
    else
        echo "the log of rank $rank could not be saved in $logs" >&2
    fi
    # The names begin with the time, so the last ones of the list are the newest.
    old=("$logs"/*-rank"$rank".log.gz)
    while ((${#old[@]} > keep)); do
        rm -f "${old[0]}"
        old=("${old[@]:1}")
    done
    docker rm --force "$name" >/dev/null
}

resolve() { # NAME -> IPv4 address
    local address
    address=$(getent ahostsv4 "$1" | awk '{print $1; exit}')
    [[ -n $address ]] || die "cannot resolve $1 to an IPv4 address"
    echo "$address"
}

# Finds the cable: sets peer, link_address, and for both machines the interface, devices and GID.
find_link() {
    local candidates candidate interface gateway line
    peer=$(resolve "${FABRIC_PEER:-${WORKER#*@}}")
    mapfile -t head_rails < <(machine_rails "$peer")
    if [[ -z ${head_rails[*]} && -z $FABRIC_PEER ]]; then
        # The worker is named by an address of another network: is one of its others on the cable?
        candidates=$(on_worker "ip -o -4 address show scope global | awk '{sub(\"/.*\", \"\", \$4); print \$4}'" </dev/null)
        for candidate in $candidates; do
            read -r interface _ gateway <<<"$(machine_interface "$candidate")"
            [[ -n $interface && $gateway == - ]] || continue
            mapfile -t head_rails < <(machine_rails "$candidate")
            if [[ -n ${head_rails[*]} ]]; then
                log "the worker's address on the cable is $candidate (found by asking it)"
                peer=$candidate
                break
            fi
        done
    fi
    read -r link_interface link_address _ <<<"$(machine_interface "$peer")"
    [[ -n $link_interface ]] || die "no route from this node to $peer"
    mapfile -t worker_rails < <(on_worker_call machine_rails "$link_address")
    read -r worker_interface _ _ <<<"$(on_worker_call machine_interface "$link_address")"
    [[ -n $worker_interface ]] || die "the worker has no route back to $link_address"
    if [[ -z ${head_rails[*]} || -z ${worker_rails[*]} ]]; then
        die "no RoCE device or RoCE v2 GID for the link: is $link_interface / $worker_interface the CX7 port between the Sparks? Set FABRIC_PEER to the worker's CX7 address"
    fi
    read -r _ head_devices head_gid _ _ <<<"${head_rails[0]}"
    read -r _ worker_devices worker_gid _ _ <<<"${worker_rails[0]}"
    rails=1
    if [[ $NCCL_RAILS == 2 && ${#head_rails[@]} -gt 1 && ${#worker_rails[@]} -gt 1 ]]; then
        use_second_rail
    fi
    line="Link: $link_address ($link_interface) <-> $peer ($worker_interface), "
    line+="RoCE $head_devices / $worker_devices (GID $head_gid / $worker_gid; $rails rail(s)"
    log "$line -> NCCL_IB_HCA, TF_RDMA_DEVICES)"
}

# A second rail that loses full-size packets ends the first collective, so each way is tried.
use_second_rail() {
    local here device gid address mtu there other_device other_gid other_address other_mtu size way=0
    read -r here device gid address mtu <<<"${head_rails[1]}"
    read -r there other_device other_gid other_address other_mtu <<<"${worker_rails[1]}"
    size=$((mtu - 28))
    if [[ $gid != "$head_gid" || $other_gid != "$worker_gid" || $mtu != "$other_mtu" ]]; then
        way=1
    else
        on_worker "ping -q -c2 -i0.2 -W2 -I $there -M 'do' -s $size $address" >/dev/null 2>&1 </dev/null &
        ping -q -c2 -i0.2 -W2 -I "$here" -M "do" -s "$size" "$other_address" >/dev/null 2>&1 || way=1
        wait $! || way=1
    fi
    if ((way)); then
        warn "second rail $here <-> $there does not reach the peer: NOT used, running on fewer rails. Check the addresses and the MTU of both ends"
        return 0
    fi
    log "Rail $here <-> $there: $address <-> $other_address reaches the peer (MTU $mtu): used"
    head_devices+=,$device
    worker_devices+=,$other_device
    rails=2
}
