#!/usr/bin/env bash
# chroot.sh   A clean Debian in a folder. Needs root, and changes nothing else on this machine.
#   make FOLDER SUITE [PACKAGE...]   installs Debian with these packages; needs the network
#   run FOLDER [--bind SOURCE TARGET]... COMMAND...   runs COMMAND in it, and ends its children with it
set -euo pipefail

# shellcheck source=scripts/debian.sh
. "$(dirname "$0")/debian.sh"

fail() { echo "error: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "only root can change the root of a process: run it with sudo"

make_root() { # FOLDER SUITE [PACKAGE...]
    local folder suite=$2 mirror
    folder=$(realpath -m "$1")
    shift 2
    "$(dirname "$0")/install.sh" chroot
    mirror=$(debian_mirror)
    echo "unpacking Debian $suite${1:+ with $*} in $folder"
    rm -rf --one-file-system "$folder"
    mkdir -p "$(dirname "$folder")"
    mmdebstrap --quiet --variant=apt --skip=cleanup/apt/lists ${1:+--include="$(IFS=, && echo "$*")"} \
        "$suite" "$folder" "$mirror"
    cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
    # The certificates that this machine trusts, which may include a proxy's.
    cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/machine.crt"
}

# Mounts and processes get namespaces that end with the command. The folder is a mount point because some programs require
# one as their root.
run() { # FOLDER [--bind SOURCE TARGET]... COMMAND...
    # shellcheck disable=SC2016 # for the inner shell
    exec unshare --mount --pid --fork --kill-child bash -euc '
        folder=$(realpath "$1")
        shift
        mount --make-rprivate /
        mount --bind "$folder" "$folder"
        mount --rbind /dev "$folder/dev"
        mount -t proc proc "$folder/proc"
        while [ "${1:-}" = --bind ]; do
            mkdir -p "$folder$3"
            mount --bind "$2" "$folder$3"
            shift 3
        done
        cd /
        exec chroot "$folder" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            CARGO_HTTP_CAINFO=/etc/machine.crt PIP_CERT=/etc/machine.crt "$@"
    ' run "$@"
}

case "${1:-}" in
    make) make_root "${@:2}" ;;
    run) run "${@:2}" ;;
    *) fail "usage: chroot.sh make FOLDER SUITE [PACKAGE...] | run FOLDER [--bind SOURCE TARGET]... COMMAND..." ;;
esac
