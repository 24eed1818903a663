#!/bin/bash
# Builds the stand-in engine's container image as an archive for `docker load`:
# a Python with its standard library, the shared libraries both need, and the engine program.
# Runs as root in the machine image, whose own Python is used; no registry can be reached.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
out=${STANDIN_ENGINE_IMAGE:-/opt/standins/engine-image.tar}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# Copies the libraries a program or module is linked with, each at the path the loader looks for.
copy_libraries() {
    local library
    while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        [[ -e $root$library ]] || cp -L "$library" "$root$library"
    done < <(ldd "$@" 2>/dev/null | grep -oE '/[^ ()]+' | grep -E '\.so([.0-9]*)$' | sort -u)
}

python=$(readlink -f "$(command -v python3)")
stdlib=$(python3 -I -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

mkdir -p "$root"/{etc,usr/bin,usr/local/bin,opt/engine,tmp,run,hf} "$root$stdlib"
ln -s usr/lib "$root/lib"
mkdir -p "$root/usr/lib"
if [[ -L /lib64 ]]; then
    mkdir -p "$root/usr/lib64"
    ln -s usr/lib64 "$root/lib64"
fi
chmod 1777 "$root/tmp"
echo 'root:x:0:0:root:/root:/bin/false' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
cp "$python" "$root/usr/bin/python3"
tar -C "$stdlib" --exclude=./test --exclude=./idlelib --exclude=./tkinter --exclude=./ensurepip \
    --exclude=./turtledemo --exclude=./pydoc_data --exclude=./dist-packages --exclude=./site-packages \
    --exclude=./config-* --exclude=./lib-dynload/_tkinter* --exclude=__pycache__ -cf - . | tar -C "$root$stdlib" -xf -
copy_libraries "$python"
for module in "$root$stdlib"/lib-dynload/*.so; do
    copy_libraries "$module"
done
cp -r "$here/bin" "$here/tensorfold_standin" "$here/../common/standin" "$root/opt/engine/"
find "$root/opt/engine" -name __pycache__ -type d -prune -exec rm -rf {} +
for program in "$root"/opt/engine/bin/*; do
    ln -s "/opt/engine/bin/$(basename "$program")" "$root/usr/local/bin/$(basename "$program")"
done

# Not by time: an image has none, and a rank would compile its libraries anew at each start.
python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash -s "$root" "$root$stdlib" "$root/opt/engine"

# Everything is there, or the build ends here and not at the first start of a rank.
chroot "$root" /usr/local/bin/tensorfold check-arguments /model
python3 -I "$here/pack_image.py" "$root" "$out.new" tensorfold-dsv41:standin >"${out%.tar}.content"
mv "$out.new" "$out"
chmod 0644 "$out" "${out%.tar}.content"
install -m 0755 "$here/load.sh" "$(dirname "$out")/load-engine-image"
