#!/usr/bin/env bash
# chroot.sh   A Debian in a folder, to try there what this machine has too much for. As root; nothing of this machine's is changed.
#   make FOLDER SUITE [PACKAGE...]   makes FOLDER that Debian, with these packages; the network is needed
#   run FOLDER [--bind SOURCE TARGET]... COMMAND...   runs COMMAND in it. What it started ends with it
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
    # Whom this machine trusts, beside whom Debian does.
    cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/machine.crt"
}

# A namespace of its own for mounts, which vanish with it, and for processes, which end with it. The folder is a mount
# itself, as some programs want of their root.
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
