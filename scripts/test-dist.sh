#!/usr/bin/env bash
# test-dist.sh FOLDER   Tests the files that dist.sh wrote to FOLDER: builds them again elsewhere and compares the bytes, checks
# the symbols of the modules, and installs them in an old and a new Debian. Starts the gate of each tarball, in an emulator if
# needed, and installs its package. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "$1")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Modules for glibc must load with this version.
GLIBC=2.17
# Debian 11, the oldest on the mirrors: glibc 2.31 and Redis 6.0.
OLDEST=bullseye
MODULE=/usr/lib/redis/modules/libtokenbucket.so

fail() { echo "error: $*" >&2; exit 1; }
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
work=$(realpath -m target/test-dist)
rm -rf --one-file-system "$work"
mkdir -p "$work"

builds_again_to_the_same_bytes() {
    say 'building again in another folder'
    git clone --quiet . "$work/again"
    mkdir -p "$work/again/target/cross"
    # Keeps downloads, and builds everything again.
    for kept in apt tools zig auditable; do cp -a "target/cross/$kept" "$work/again/target/cross/"; done
    if [ -e target/tools ]; then cp -a target/tools "$work/again/target/"; fi
    (cd "$work/again" && scripts/dist.sh "$version" "$work/dist")
    diff "$dist/SHA256SUMS" "$work/dist/SHA256SUMS" || fail "the second build gave other bytes"
    rm -rf "$work/again"
}

unpacks_as_promised() { # TARBALL BINARY FILE...
    local name
    name=$(basename "$1" .tar.gz)
    tar -xzf "$1" -C "$work"
    (cd "$work/$name" && ls -d -- CHANGELOG.md LICENSE THIRD-PARTY-LICENCES "${@:3}" >/dev/null)
    [ "$(stat -c %a "$work/$name/$2")" = 755 ] || fail "$2 of $name lacks its run bit"
}

asks_for_no_newer_glibc() { # MODULE
    local newest
    newest=$(readelf --wide --version-info "$1" | grep -oE 'GLIBC_[0-9.]+' | cut -d _ -f 2 | sort -Vu | tail -1)
    [ -n "$newest" ] || fail "$1 asks for no version of glibc at all: it was not read"
    [ "$(printf '%s\n' "$newest" "$GLIBC" | sort -V | tail -1)" = "$GLIBC" ] || fail "$1 asks for GLIBC_$newest"
    echo "$(basename "$(dirname "$1")") asks for GLIBC_$newest"
}

asks_for_no_glibc() { # MODULE
    ! readelf --wide --version-info --dynamic "$1" | grep -E 'GLIBC_|libc\.so\.6|libgcc_s' || fail "$1 is for glibc"
    echo "$(basename "$(dirname "$1")") asks for no glibc"
}

# cargo audit and other scanners read the crates from this section, which must be below 10 kB.
names_its_crates() { # BINARY CRATE...
    local offset size
    read -r offset size < <(readelf --wide --sections "$1" |
        sed -nE 's/.* \.dep-v0 +[A-Z]+ +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+) .*/0x\1 0x\2/p') || fail "$1 does not name its crates"
    [ $((size)) -lt 10000 ] || fail "the names of its crates are $((size)) bytes of $1"
    python3 - "$1" $((offset)) $((size)) "${@:2}" <<'PYTHON' || fail "$1 names other crates than its own"
import json, sys, zlib
path, offset, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "rb") as binary:
    binary.seek(offset)
    names = {package["name"] for package in json.loads(zlib.decompress(binary.read(size)))["packages"]}
print(f"{len(names)} crates are named in {size} bytes")
sys.exit(not set(sys.argv[4:]) <= names)
PYTHON
}

is_static() { # PROGRAM
    ! readelf --wide --dynamic --program-headers "$1" | grep -E 'NEEDED|INTERP' || fail "$1 is not static"
    readelf --wide --file-header "$1" | grep -q 'Type: *DYN' || fail "$1 has a fixed address"
}

# Starts the gate with the limits of its examples, and asks for a decision. There is no Redis: ON_ERROR allows the request.
answers() ( # FOLDER TARGET
    say "starting the gate for $2"
    # shellcheck disable=SC2207 # words
    gate=($(scripts/cross.sh emulator "$2") "$1/tokenbucket-gate")
    "${gate[@]}" --version
    "${gate[@]}" check "$1/examples/limits/edge.yaml"
    port=$(free_port)
    "${gate[@]}" --host 127.0.0.1 --port "$port" --grpc-uds "$work/grpc" --debug-port "$(free_port)" --on-error allow \
        --runtime-root "$1/examples" --runtime-appdirectory limits --redis-url "127.0.0.1:$(free_port)" &
    pid=$!
    trap 'kill "$pid" 2>/dev/null || true' EXIT
    until status=$(ask "$port"); do
        kill -0 "$pid" 2>/dev/null || fail "the gate for $2 ended"
        sleep 0.1
    done
    [ "$status" = 200 ] || fail "the gate for $2 replied $status"
    kill "$pid"
    wait "$pid" || fail "the gate for $2 failed when it was told to end"
)

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Prints the status of the reply. Fails if nothing listens.
ask() { # PORT
    python3 - "$1" <<'PYTHON'
import http.client, json, sys
question = {"domain": "edge", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.1"}]}]}
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
try:
    connection.request("POST", "/json", json.dumps(question), {"Content-Type": "application/json"})
except ConnectionRefusedError:
    sys.exit(1)
print(connection.getresponse().status)
PYTHON
}

# Installs the package of the gate, runs it, judges its unit, and purges it after it was enabled.
gate_works_in() { # SUITE
    local root=$work/gate-$1 left
    say "installing the gate in Debian $1"
    scripts/chroot.sh make "$root" "$1" systemd
    (cd "$root" && find . -xdev -path ./proc -prune -o -name '*tokenbucket*' -print) >"$work/before"
    cp "$dist/tokenbucket-gate_${version}_amd64.deb" "$root/tmp/gate.deb"
    # shellcheck disable=SC2016 # for the inner shell
    scripts/chroot.sh run "$root" bash -euc '
        dpkg -i /tmp/gate.deb
        tokenbucket-gate --version
        tokenbucket-gate check /etc/tokenbucket-gate/config/*
        # An older systemd-analyze needs the control groups of a running system.
        [ "$1" = "$2" ] || systemd-analyze verify tokenbucket-gate.service
        [ "$(systemctl is-enabled tokenbucket-gate)" = disabled ] || { echo "error: installing enables the gate" >&2; exit 1; }
        systemctl enable tokenbucket-gate
        echo "# changed" >>/etc/tokenbucket-gate/config/edge.yaml
        DEBIAN_FRONTEND=noninteractive dpkg -i /tmp/gate.deb
        grep -q "^# changed" /etc/tokenbucket-gate/config/edge.yaml || { echo "error: an upgrade overwrites limits" >&2; exit 1; }
        dpkg --remove tokenbucket-gate
        [ -e /etc/tokenbucket-gate/config/edge.yaml ] || { echo "error: removing deletes limits" >&2; exit 1; }
        dpkg --purge tokenbucket-gate
        rm /tmp/gate.deb
    ' sh "$1" "$OLDEST"
    left=$(cd "$root" && find . -xdev -path ./proc -prune -o -name '*tokenbucket*' -print | grep -vxFf "$work/before" || true)
    [ -z "$left" ] || fail "purging the gate leaves $left"
    rm -rf --one-file-system "$root"
}

# Writes the same package as an older version, to upgrade from.
older_package() { # PACKAGE TARGET
    rm -rf "$work/older"
    dpkg-deb --raw-extract "$1" "$work/older"
    sed -i 's/^Version: .*/Version: 0.0.0/' "$work/older/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$work/older" "$2" >/dev/null
}

# Upgrades to the package by apt, reads the loadmodule line that it prints, starts a server with it, and removes it.
works_in() { # SUITE SERVER...
    local suite=$1 root=$work/$1 server package
    shift
    say "installing in Debian $suite, with $*"
    scripts/chroot.sh make "$root" "$suite" "$@"
    cp "$dist/tokenbucket_${version}_amd64.deb" "$root/tmp/"
    install -D -t "$root/project/scripts" scripts/smoke.sh scripts/test-loading.sh
    cp Cargo.toml "$root/project/"
    older_package "$dist/tokenbucket_${version}_amd64.deb" "$root/tmp/tokenbucket_0.0.0_amd64.deb"
    for package in 0.0.0 "$version"; do
        # On a terminal each line would end in a carriage return.
        scripts/chroot.sh run "$root" env DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 install --yes \
            "/tmp/tokenbucket_${package}_amd64.deb" | tee "$root/tmp/said"
    done
    grep -q "^    loadmodule $MODULE\$" "$root/tmp/said" || fail "the package does not say its loadmodule line"
    for server in "$@"; do
        # The systemd unit must let the server load from there.
        unit=$root/lib/systemd/system/$server.service
        [ ! -e "$unit" ] || ! grep -q '^NoExecPaths=' "$unit" || grep -qE '^ExecPaths=.*/usr/lib( |$)' "$unit" ||
            fail "$server of $suite may not load from /usr/lib"
        # shellcheck disable=SC2016 # for the inner shell
        scripts/chroot.sh run "$root" bash -euc '
            cli=${1%-server}-cli
            ldd --version | sed -n 1p
            "$1" --port 0 --unixsocket /tmp/socket --save "" --loadmodule "$2" >/tmp/log &
            /project/scripts/smoke.sh "$cli" -s /tmp/socket || { cat /tmp/log; exit 1; }
        ' sh "$server" "$MODULE"
        [ "$suite" = "$OLDEST" ] ||
            scripts/chroot.sh run "$root" /project/scripts/test-loading.sh "$server" "${server%-server}-cli" "$MODULE"
    done
    scripts/chroot.sh run "$root" apt-get purge --yes tokenbucket
    [ ! -e "$root$MODULE" ] || fail "purging the package leaves the module"
    rm -rf --one-file-system "$root"
}

scripts/install.sh cc chroot
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
for tarball in "$dist"/tokenbucket-[0-9]*.tar.gz; do
    unpacks_as_promised "$tarball" libtokenbucket.so README.md redis.conf.example
    module=$work/$(basename "$tarball" .tar.gz)/libtokenbucket.so
    case "$tarball" in *-glibc.tar.gz) asks_for_no_newer_glibc "$module" ;; *) asks_for_no_glibc "$module" ;; esac
    names_its_crates "$module" tokenbucket redis-module
done
for tarball in "$dist"/tokenbucket-gate-*.tar.gz; do
    unpacks_as_promised "$tarball" tokenbucket-gate tokenbucket-gate.service examples
    folder=$work/$(basename "$tarball" .tar.gz)
    is_static "$folder/tokenbucket-gate"
    names_its_crates "$folder/tokenbucket-gate" tokenbucket-gate tonic
    case "$tarball" in *-arm64.tar.gz) processor=aarch64 ;; *) processor=x86_64 ;; esac
    answers "$folder" "$processor-unknown-linux-musl"
done
for tarball in "$dist"/tokenbucket-replay-*.tar.gz; do
    unpacks_as_promised "$tarball" tokenbucket-replay
    program=$work/$(basename "$tarball" .tar.gz)/tokenbucket-replay
    is_static "$program"
    names_its_crates "$program" tokenbucket-replay tokenbucket-core
    case "$tarball" in *-arm64.tar.gz) processor=aarch64 ;; *) processor=x86_64 ;; esac
    emulator=$(scripts/cross.sh emulator "$processor-unknown-linux-musl")
    # shellcheck disable=SC2086 # words
    echo '192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1' | $emulator "$program"
done
gate_works_in "$OLDEST"
gate_works_in trixie
works_in "$OLDEST" redis-server
works_in trixie redis-server valkey-server
builds_again_to_the_same_bytes
