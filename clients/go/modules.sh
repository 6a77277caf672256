#!/usr/bin/env bash
# modules.sh [modules|debian]: decides where the Go module in the working directory gets its requirements from. It writes the
# GOFLAGS to .mode. modules: as go.mod says. debian: as .debian.mod says, from Debian's packages, for machines that cannot
# reach a Go module proxy. Neither: whichever can be had.
set -euo pipefail
mode=${1:-}
case "$mode" in modules | debian | '') ;; *) echo "MODE is '$mode', it must be modules or debian" >&2; exit 1 ;; esac
root=$(cd "$(dirname "$0")/../.." && pwd)
unpacked=$root/target/go-sources

needs() { grep -q "$1" go.mod; }

# replace MODULE FOLDER: takes a module from a folder.
replace() { go mod edit -replace "$1=$2" .debian.mod; }

# Debian 12 and 13 have no go-redis, so these are the files of the release after them, unpacked and not installed.
unpack_goredis() {
    [ ! -e "$unpacked/ready" ] || return 0
    echo "getting go-redis from Debian's packages"
    "$root/testing/apt-install.sh" debian-archive-keyring
    rm -rf "$unpacked"
    mkdir -p "$unpacked/packages"
    local TREES=$unpacked/.apt ARCHITECTURE
    ARCHITECTURE=$(dpkg --print-architecture)
    # shellcheck source=../../scripts/debian.sh
    . "$root/scripts/debian.sh"
    (cd "$unpacked/packages" && suite_apt forky download golang-github-redis-go-redis-dev \
        golang-github-cespare-xxhash-v2-dev golang-github-dgryski-go-rendezvous-dev)
    unpack_all "$unpacked/packages" "$unpacked"
    mv "$unpacked"/usr/share/gocode/src/github.com/* "$unpacked"
    rm -rf "$unpacked/packages" "$unpacked/usr"
    # What it needs is in go.mod; more, its tests alone need.
    printf 'module github.com/redis/go-redis/v9\n\ngo 1.18\n' >"$unpacked/redis/go-redis/go.mod"
    printf 'module github.com/dgryski/go-rendezvous\n\ngo 1.11\n' >"$unpacked/dgryski/go-rendezvous/go.mod"
    if [ ! -d "$(go env GOROOT)/src/slices" ]; then add_slices; fi
    touch "$unpacked/ready"
}

# All that keeps go-redis 9.17 from building with the Go of Debian 12 is one function of a package that came with Go 1.21.
add_slices() {
    local folder=$unpacked/redis/go-redis/internal/slices
    mkdir -p "$folder"
    cat >"$folder/slices.go" <<'GO'
package slices

func Contains[E comparable](all []E, wanted E) bool {
	for _, one := range all {
		if one == wanted {
			return true
		}
	}
	return false
}
GO
    grep -rl '"slices"' --include='*.go' --exclude='*_test.go' "$unpacked/redis/go-redis" |
        xargs sed -i 's|"slices"|"github.com/redis/go-redis/v9/internal/slices"|'
}

from_debian() {
    cp go.mod .debian.mod
    rm -f .debian.sum
    if needs redis/go-redis; then
        unpack_goredis
        replace github.com/redis/go-redis/v9 "$unpacked/redis/go-redis"
        replace github.com/cespare/xxhash/v2 "$unpacked/cespare/xxhash/v2"
        replace github.com/dgryski/go-rendezvous "$unpacked/dgryski/go-rendezvous"
    fi
}

if [ "$mode" != debian ]; then
    echo 'fetching what go.mod requires'
    if timeout 60 go mod download; then mode=modules
    elif [ "$mode" = modules ]; then exit 1
    else echo 'no Go module proxy in reach: taking what Debian packages'; mode=debian; fi
fi
case "$mode" in
    modules) echo '-mod=mod' >.mode ;;
    debian) from_debian; echo '-modfile=.debian.mod' >.mode ;;
esac
