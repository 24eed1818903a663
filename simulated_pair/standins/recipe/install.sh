#!/bin/bash
# Puts the recipe stand-in's repository into the machine image, where it stands for the one on
# GitHub. Runs as root. HEAD.txt says which commit that is: users of the pair name it, so a change
# of the recipe without a change there fails the build.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
head=$("$here/build.sh" /opt/standins/recipe.git)
expected=$(cat "$here/HEAD.txt")
if [[ $head != "$expected" ]]; then
    echo "the recipe stand-in has changed: its head is $head, HEAD.txt says $expected. Write the new one there" >&2
    exit 1
fi
echo "$head" >/opt/standins/recipe.head
chmod -R a+rX /opt/standins/recipe.git /opt/standins/recipe.head
git config --system --get-all safe.directory 2>/dev/null | grep -qx /opt/standins/recipe.git ||
    git config --system --add safe.directory /opt/standins/recipe.git

# start.sh tries the second rail with ping as an ordinary user. On a real machine a kernel setting
# or a file capability allows that; the image has neither.
chmod u+s /usr/bin/ping
