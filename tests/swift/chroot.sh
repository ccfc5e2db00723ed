#!/bin/sh
# chroot.sh ROOT FOLDER... -- COMMAND...: runs a command in ROOT, with these folders at the paths that they have outside.
# All mounts are in a namespace of their own: they end with the command, however that ends. Needs root.
set -eu
if [ "${ZOEXPORT_MOUNTS:-}" != own ]; then
  ZOEXPORT_MOUNTS=own exec unshare --mount -- "$0" "$@"
fi
root=$1
shift
for folder in /proc /dev; do
  mount --rbind "$folder" "$root$folder"
done
while [ "$1" != -- ]; do
  mkdir -p "$root$1"
  mount --bind "$1" "$root$1"
  shift
done
shift
exec chroot "$root" /usr/bin/env -C "$PWD" "$@"
