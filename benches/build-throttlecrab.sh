#!/usr/bin/env bash
# build-throttlecrab.sh FOLDER   Builds throttlecrab-server, a rate limiter with a server of its own, out of the crate that its author
# published, into FOLDER/throttlecrab-server (about five minutes). Nothing of it is part of this project.
set -euo pipefail
version=0.4.40
folder=$(realpath -m "${1:?a folder is needed}")
program=$folder/throttlecrab-server-$version
if [ ! -e "$program" ]; then
    echo "building throttlecrab-server $version"
    cargo install --quiet --locked --version "$version" --root "$folder/build" throttlecrab-server
    mv "$folder/build/bin/throttlecrab-server" "$program"
    rm -rf "$folder/build"
fi
ln -sf "$(basename "$program")" "$folder/throttlecrab-server"
