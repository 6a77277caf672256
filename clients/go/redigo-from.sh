#!/bin/sh
# redigo-from.sh [modules|debian]: decides where the Go module in the working directory gets redigo from, and says so in
# .mode. modules: as go.mod says. debian: Debian's package of it, by .debian.mod. Neither: whichever can be had.
set -eu
mode=${1:-}
case "$mode" in modules | debian | '') ;; *) echo "MODE is '$mode', it must be modules or debian" >&2; exit 1 ;; esac

if [ "$mode" != debian ]; then
    echo 'fetching redigo, as go.mod says'
    if timeout 60 go mod download; then mode=modules
    elif [ "$mode" = modules ]; then exit 1
    else echo 'no Go module proxy in reach: taking the redigo that Debian packages'; mode=debian; fi
fi
if [ "$mode" = debian ]; then
    "$(dirname "$0")/../../examples/apt-install.sh" golang-github-gomodule-redigo-dev
    cp go.mod .debian.mod
    go mod edit -replace github.com/gomodule/redigo=/usr/share/gocode/src/github.com/gomodule/redigo .debian.mod
fi
echo "$mode" > .mode
