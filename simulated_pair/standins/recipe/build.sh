#!/bin/bash
# Builds the recipe stand-in's repository and prints its head commit. The same files always give the
# same commits: names, dates and modes are fixed.
# usage: build.sh TARGET.git
#   v1  the first published state, without tools/
#   v2  with tools/
#   v3  the present one: says where wider kernels go
set -euo pipefail

target=$1
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export HOME=$work GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null TZ=UTC
export GIT_AUTHOR_NAME='recipe stand-in' GIT_AUTHOR_EMAIL=recipe@example.invalid
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL

commit() { # DATE MESSAGE TAG
    export GIT_AUTHOR_DATE=$1 GIT_COMMITTER_DATE=$1
    git -C "$work/tree" add --all --force
    git -C "$work/tree" -c core.autocrlf=false commit --quiet --message "$2"
    git -C "$work/tree" -c tag.gpgSign=false tag "$3"
}

copy() { # MODE FILE…
    local mode=$1 file
    shift
    for file in "$@"; do
        install -D -m "$mode" "$here/tree/$file" "$work/tree/$file"
    done
}

mkdir "$work/tree"
git -C "$work/tree" -c init.defaultBranch=main init --quiet
# Only the files that belong to it: a scripts/local.sh that somebody tried out does not.
copy 0755 start.sh stop.sh scripts/memguard.sh scripts/prepare.sh
copy 0644 .gitignore README.md scripts/config.sh scripts/local.sh.example scripts/nodes.sh
echo 1 >"$work/tree/VERSION"
commit '2026-01-10T12:00:00+00:00' 'Launcher for two machines' v1
echo 2 >"$work/tree/VERSION"
copy 0755 tools/ablit_stock_dtypes.py tools/bench.py
commit '2026-02-14T12:00:00+00:00' 'Add a smoke reading of the speed' v2
copy 0644 VERSION KERNELS.md
commit '2026-03-07T12:00:00+00:00' 'Say where kernels for wider rounds go' v3

rm -rf "$target"
git clone --quiet --bare "$work/tree" "$target"
git -C "$target" remote remove origin
git -C "$target" rev-parse main
