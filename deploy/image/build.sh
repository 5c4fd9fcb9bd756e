#!/bin/sh
# `make image`: build both targets of deploy/Dockerfile without a registry and without a daemon.
#
# The base is made of Debian's packages; wheels are fetched once, and checked by their hashes. Needs
# buildah and mmdebstrap (Debian's packages) and root. Everything lies in .image/ of the checkout.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
work=$PWD/.image
for program in buildah mmdebstrap; do
    command -v $program >/dev/null || { echo "$program is missing: install Debian's package $program" >&2; exit 2; }
done
mkdir -p "$work/wheels"

buildah() { command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"; }

if [ ! -e "$work/base.tar" ]; then
    mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates,libjemalloc2 \
        --customize-hook='chroot "$1" apt-get -y -qq install usr-is-merged usrmerge-' \
        --customize-hook='chroot "$1" apt-get -y -qq purge perl "perl-modules-*" "libperl5*"' \
        --customize-hook='chroot "$1" apt-get -y -qq autoremove --purge' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --format=tar bookworm "$work/base.tar.part"
    mv "$work/base.tar.part" "$work/base.tar"
fi
for file in build requirements datasets; do
    "$python" -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
        --only-binary :all: --dest "$work/wheels" -r "deploy/image/$file.txt"
done

rm -rf "$work/full" "$work/slim"
# A changed base is another image.
[ "$work/base.tar" -ot "$work/storage" ] || rm -rf "$work/storage"
buildah rm --all >/dev/null 2>&1 || true
if ! buildah inspect penstock-base >/dev/null 2>&1; then
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/base.tar" /
    buildah commit --quiet "$container" penstock-base >/dev/null
    buildah rm "$container" >/dev/null
fi
revision=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
for target in slim full; do
    buildah build --quiet --isolation chroot --pull-never --layers=false --target "$target" \
        --build-arg BASE=localhost/penstock-base --build-arg REVISION="$revision" \
        --build-arg PIP_OPTIONS="--no-index --find-links /wheels" --volume "$work/wheels:/wheels:ro" \
        --file deploy/Dockerfile --tag "penstock:$target" . >/dev/null
    container=$(buildah from --pull-never "localhost/penstock:$target")
    mounted=$(buildah mount "$container")
    cp -a "$mounted" "$work/$target"
    buildah rm "$container" >/dev/null
    touch "$work/$target/etc/hosts"  # every runtime makes it
    buildah inspect --type image "penstock:$target" >"$work/$target.json"
    # The software bill of materials: Debian's packages, and Python's.
    {
        chroot "$work/$target" dpkg-query -W -f '${Package} ${Version}\n' | sed 's/^/debian /'
        sed 's/^/python /' "$work/$target/opt/penstock/packages.txt"
    } >"$work/$target.packages.txt"
    printf '%-5s %5d MB unpacked, %d packages\n' "$target" \
        "$(du -s --apparent-size --block-size=1000000 "$work/$target" | cut -f1)" \
        "$(wc -l <"$work/$target.packages.txt")"
done
