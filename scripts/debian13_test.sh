#!/usr/bin/env bash
# `make test-debian13`: scripts/first_hour.sh in a fresh Debian 13, which has Python 3.13, for which only numpy 2 has
# wheels. It needs root, for a root file system of its own; that is gone at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "skipped: test-debian13 needs root" >&2; exit; }
make --no-print-directory programs NEEDS=mmdebstrap:mmdebstrap
folder=$(mktemp -d "${TMPDIR:-/tmp}/penstock-debian13-XXXXXX")
trap 'rm -rf --one-file-system "$folder"' EXIT
packages=ca-certificates,curl,git,libgomp1,libpython3.13,python3,python3-venv
mmdebstrap --quiet --variant=minbase --include="$packages" trixie "$folder/root"
cp --dereference /etc/ssl/certs/ca-certificates.crt "$folder/root/etc/ssl/certs/" # with this machine's own
git clone --quiet . "$folder/root/penstock"
# In namespaces of its own: mounts and processes end with it.
PYTHON=python3 PATH=/usr/sbin:/usr/bin:/sbin:/bin unshare --mount --pid --fork --kill-child sh -c '
    mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" /penstock/scripts/first_hour.sh
' "$folder/root"
