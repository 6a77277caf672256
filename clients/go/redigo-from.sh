#!/bin/sh
# redigo-from.sh [modules|debian]: decides where the Go module in the working directory gets redigo from, and says so in
# .mode. modules: as go.mod says. debian: Debian's package of it, by .debian.mod. Neither: whichever can be had.
# With redisc on top, if go.mod asks for it.
set -eu
mode=${1:-}
case "$mode" in modules | debian | '') ;; *) echo "MODE is '$mode', it must be modules or debian" >&2; exit 1 ;; esac
packaged=/usr/share/gocode/src/github.com

# replace MODULE FOLDER: takes a module from a folder.
replace() { go mod edit -replace "github.com/$1=$2" .debian.mod; }

from_debian() {
    packages=golang-github-gomodule-redigo-dev
    ! needs_redisc || packages="$packages golang-github-mna-redisc-dev"
    # shellcheck disable=SC2086
    "$(dirname "$0")/../../examples/apt-install.sh" $packages
    cp go.mod .debian.mod
    replace gomodule/redigo "$packaged/gomodule/redigo"
    if needs_redisc; then
        # It is packaged without a go.mod, and with tests that need more.
        rm -rf .redisc && mkdir .redisc
        cp "$packaged"/mna/redisc/*.go .redisc && rm .redisc/*_test.go
        printf 'module github.com/mna/redisc\n\ngo 1.19\n\nrequire github.com/gomodule/redigo v1.9.3\n' > .redisc/go.mod
        replace mna/redisc ./.redisc
    fi
}

needs_redisc() { grep -q mna/redisc go.mod; }

if [ "$mode" != debian ]; then
    echo 'fetching redigo, as go.mod says'
    if timeout 60 go mod download; then mode=modules
    elif [ "$mode" = modules ]; then exit 1
    else echo 'no Go module proxy in reach: taking the redigo that Debian packages'; mode=debian; fi
fi
if [ "$mode" = debian ]; then from_debian; fi
echo "$mode" > .mode
