#!/bin/bash
# Loads the stand-in engine's image into the running Docker under a tag.
# usage: load.sh [TAG]      default tensorfold-dsv41:standin
# Does nothing when the tag already names an image of the same content.
set -euo pipefail

tag=${1:-tensorfold-dsv41:standin}
archive=${STANDIN_ENGINE_IMAGE:-/opt/standins/engine-image.tar}
content=$(cat "${archive%.tar}.content")
label=spark-pair.standin.content

present=$(docker image inspect --format "{{ index .Config.Labels \"$label\" }}" "$tag" 2>/dev/null || true)
if [[ $present == "$content" ]]; then
    echo "$tag is already loaded"
    exit 0
fi
docker load --quiet --input "$archive" >/dev/null
if [[ $tag != tensorfold-dsv41:standin ]]; then
    docker tag tensorfold-dsv41:standin "$tag"
fi
echo "$tag loaded"
