#!/usr/bin/env bash
# bare.sh SUITE   Clones the last commit in a fresh Debian with only make and git, runs `make run`, calls that server, and
# runs `make test`. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
root=target/bare/$1
port=$((20000 + RANDOM % 10000))
began=$SECONDS

scripts/chroot.sh make "$root" "$1" make git
for program in cargo rustc cc redis-cli; do
    # shellcheck disable=SC2016 # for the inner shell
    scripts/chroot.sh run "$root" sh -c '! command -v "$1"' sh $program
done
git clone --quiet --no-hardlinks . "$root/project"
# shellcheck disable=SC2016 # for the inner shell
scripts/chroot.sh run "$root" bash -euc '
    cd /project
    make run PORT="$1" &
    while ! command -v redis-cli >/dev/null || [ ! -e target/release/libtokenbucket.so ]; do
        kill -0 $! 2>/dev/null || { echo "error: make run ended" >&2; exit 1; }
        sleep 1
    done
    scripts/smoke.sh redis-cli -p "$1"
    redis-cli -p "$1" SHUTDOWN NOSAVE
    wait
    echo "make run took $SECONDS s with $(cargo --version)"
    make test
' sh "$port"
rm -rf --one-file-system "$root"
echo "passed in $((SECONDS - began)) s"
