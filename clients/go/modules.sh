#!/bin/sh
# modules.sh [modules|debian]: decides where the Go module in the working directory gets its requirements from. It writes the
# GOFLAGS to .mode. modules: as go.mod says. debian: by .debian.mod, from Debian's packages of redigo and redisc, and go-redis from
# GO_SOURCES, a folder with go-redis, xxhash and go-rendezvous; without that folder nothing of go-redis is built. Neither:
# whichever can be had.
set -eu
mode=${1:-}
case "$mode" in modules | debian | '') ;; *) echo "MODE is '$mode', it must be modules or debian" >&2; exit 1 ;; esac
clients=$(cd "$(dirname "$0")" && pwd)
sources=${GO_SOURCES:-$clients/../../target/go-sources}
packaged=/usr/share/gocode/src/github.com

needs() { grep -q "$1" go.mod; }

# replace MODULE FOLDER: takes a module from a folder.
replace() { go mod edit -replace "$1=$2" .debian.mod; }

from_debian() {
    packages=golang-github-gomodule-redigo-dev
    ! needs mna/redisc || packages="$packages golang-github-mna-redisc-dev"
    # shellcheck disable=SC2086
    "$clients/../../examples/apt-install.sh" $packages
    cp go.mod .debian.mod
    rm -f .debian.sum
    replace github.com/gomodule/redigo "$packaged/gomodule/redigo"
    if needs mna/redisc; then
        # It is packaged without a go.mod, and with tests that need more.
        rm -rf .redisc && mkdir .redisc
        cp "$packaged"/mna/redisc/*.go .redisc && rm .redisc/*_test.go
        printf 'module github.com/mna/redisc\n\ngo 1.19\n\nrequire github.com/gomodule/redigo v1.9.3\n' > .redisc/go.mod
        replace github.com/mna/redisc ./.redisc
    fi
    needs redis/go-redis || { mode=goredis; return; }
    if [ -d "$sources/go-redis" ]; then
        replace github.com/redis/go-redis/v9 "$sources/go-redis"
        replace github.com/cespare/xxhash/v2 "$sources/xxhash"
        replace github.com/dgryski/go-rendezvous "$sources/go-rendezvous"
        mode=goredis
    else
        echo "no sources of go-redis in $sources: leaving it out"
        for module in github.com/redis/go-redis/v9 github.com/cespare/xxhash/v2 github.com/dgryski/go-rendezvous tokenbucket/goredis; do
            go mod edit -droprequire "$module" .debian.mod
        done
    fi
}

if [ "$mode" != debian ]; then
    echo 'fetching what go.mod requires'
    if timeout 60 go mod download; then mode=modules
    elif [ "$mode" = modules ]; then exit 1
    else echo 'no Go module proxy in reach: taking what Debian packages'; mode=debian; fi
fi
if [ "$mode" = debian ]; then from_debian; fi
case "$mode" in
    modules) echo '-mod=mod' ;;
    goredis) echo '-modfile=.debian.mod' ;;
    debian) echo '-modfile=.debian.mod -tags=nogoredis' ;;
esac >.mode
