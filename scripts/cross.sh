#!/usr/bin/env bash
# cross.sh WHAT TARGET [NAME]   For other processors and C libraries than this machine's. Prints, on the last line, a path:
#   build TARGET         the module: target/cross/TARGET/libtokenbucket.so
#   server TARGET NAME   a server that runs here, by an emulator if need be: target/cross/TARGET/NAME/server
#   cc TARGET            a C compiler: target/cross/TARGET/cc
# TARGET: aarch64-unknown-linux-gnu, s390x-unknown-linux-gnu, x86_64-unknown-linux-gnu or x86_64-unknown-linux-musl.
# NAME: one that Debian 13 has for the processor, as in scripts/engines.sh; for musl redis-7.0.15 or valkey-8.1.1.
#
# The module is built by the Rust of Debian 13, with Debian's standard library of each target or, for musl, with one
# built from Debian's source of it. Compiler and linker for C is zig, from PyPI: it knows the symbols of every glibc,
# so that the module asks for none newer than GLIBC, and it knows musl. All of that is unpacked under target/cross,
# 3 GB: nothing is installed, and no root is needed where a user may have a namespace of mounts.
set -euo pipefail
cd "$(dirname "$0")/.."

GLIBC=2.17
AUDITABLE=0.7.7
ZIG=0.17.1
ZIG_SHA256=ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54
CROSS=$(realpath -m target/cross)
TOOLS=$CROSS/tools
TREES=$CROSS/apt
EMULATORS=$CROSS/emulators/usr/bin
# shellcheck source=scripts/debian.sh
. scripts/debian.sh

fail() { echo "error: $*" >&2; exit 1; }
say() { echo "cross: $*" >&2; }

# What the words for a target are elsewhere, and where its headers are in zig, of its own kind first.
know() { # TARGET
    target=$1 builds_std=
    case "$target" in
        aarch64-unknown-linux-gnu | s390x-unknown-linux-gnu)
            machine=${target%%-*}
            zig=$machine-linux-gnu.$GLIBC headers="$machine-linux-gnu generic-glibc $machine-linux-any" ;;
        x86_64-unknown-linux-gnu)
            machine=x86_64
            zig=x86_64-linux-gnu.$GLIBC headers="x86-linux-gnu generic-glibc x86-linux-any" ;;
        x86_64-unknown-linux-musl)
            machine=x86_64 builds_std=yes
            zig=x86_64-linux-musl headers="x86_64-linux-musl generic-musl x86-linux-any" ;;
        *) fail "no target is known by the name $target" ;;
    esac
    mkdir -p "$CROSS/$target"
}

# The newest Rust of Debian 13, with the standard libraries of other processors, and what compiles for this one.
prepare_tools() {
    [ -e "$TOOLS/ready" ] && return
    say "fetching Rust from Debian 13 (600 MB, unpacked 2 GB)"
    rm -rf "$TOOLS"
    ARCHITECTURE=amd64
    from_debian_whole "$TOOLS" trixie base-files bash coreutils cargo-web rust-web-src gcc libc6-dev libclang1
    for ARCHITECTURE in arm64 s390x; do
        from_debian "$CROSS/std" trixie libstd-rust-web-dev
        cp -r "$CROSS"/std/usr/lib/rustlib/* "$TOOLS/usr/lib/rustlib/"
        rm -rf "$CROSS/std"
    done
    # What the packages' own scripts would have done.
    ln -sf bash "$TOOLS/usr/bin/sh"
    ln -sf gcc "$TOOLS/usr/bin/cc"
    mkdir -p "$TOOLS"/{project,cross,cargo,etc/ssl/certs}
    touch "$TOOLS/ready"
}

prepare_zig() {
    [ -e "$CROSS/zig/ready" ] && return
    say "fetching zig from PyPI (100 MB, unpacked 400 MB)"
    rm -rf "$CROSS/zig"
    mkdir -p "$CROSS/zig"
    echo "ziglang==$ZIG --hash=sha256:$ZIG_SHA256" >"$CROSS/zig/requirements.txt"
    python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps --require-hashes \
        --only-binary=:all: --target "$CROSS/zig" -r "$CROSS/zig/requirements.txt"
    touch "$CROSS/zig/ready"
}

# What makes the module name the crates that it was made of, for cargo audit and scanners like it: 1 kB.
prepare_auditable() {
    [ -x "$CROSS/auditable/bin/cargo-auditable" ] && return
    say "building cargo-auditable"
    inside CARGO_TARGET_DIR=/cross/build cargo install --locked --root /cross/auditable --version "$AUDITABLE" \
        cargo-auditable >&2
}

prepare_emulators() {
    [ -e "$EMULATORS/qemu-s390x" ] && return
    say "fetching emulators from Debian 13 (70 MB)"
    ARCHITECTURE=amd64
    from_debian "$CROSS/emulators" trixie qemu-user
    find "$EMULATORS" -type f ! -name qemu-aarch64 ! -name qemu-s390x -delete
}

# zig under the names that cargo and make call: cc, which links too, and ar. What rustc and the cc crate say in words
# that zig does not know is said in its own. It works from wherever target/cross is seen.
prepare_compiler() {
    prepare_zig
    cat >"$CROSS/$target/cc" <<CC
#!/bin/bash
cross=\$(realpath "\$(dirname "\$0")/..")
export ZIG_GLOBAL_CACHE_DIR=\$cross/zig/cache ZIG_LOCAL_CACHE_DIR=\$cross/zig/cache
arguments=()
for argument in "\$@"; do
    case "\$argument" in
        --target=*) continue ;;
        # The unwinder becomes part of the module: not every image of a server has it.
        -lgcc_s | -lgcc_eh) argument=-lunwind ;;
    esac
    arguments+=("\$argument")
done
exec "\$cross/zig/ziglang/zig" cc -target $zig -fno-sanitize=all "\${arguments[@]}"
CC
    cat >"$CROSS/$target/ar" <<'AR'
#!/bin/bash
exec "$(dirname "$0")/../zig/ziglang/zig" ar "$@"
AR
    chmod +x "$CROSS/$target"/{cc,ar}
}

# Runs a command in the tree of tools, with the project as /project: the same paths whoever builds it, and wherever.
inside() { # VARIABLE=value... COMMAND ARGUMENT...
    local cargo_home=${CARGO_HOME:-$HOME/.cargo} proxies
    mkdir -p "$cargo_home"
    cp -L /etc/resolv.conf /etc/hosts "$TOOLS/etc/"
    cp -L /etc/ssl/certs/ca-certificates.crt "$TOOLS/etc/ssl/certs/"
    mapfile -t proxies < <(env | grep -i '^[a-z]*_proxy=' || true)
    unshare --mount --map-root-user true 2>/dev/null ||
        fail "this machine lets no user have a namespace of mounts: run it as root, or outside of the container"
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount --map-root-user bash -euc '
        tools=$1
        for pair in /proc:proc /dev:dev "$2:project" "$3:cross" "$4:cargo"; do
            mount --rbind "${pair%:*}" "$tools/${pair##*:}"
        done
        shift 4
        cd /
        exec chroot "$tools" /usr/bin/env -i -C /project PATH=/usr/bin HOME=/tmp CARGO_HOME=/cargo "$@"
    ' inside "$TOOLS" "$PWD" "$CROSS" "$cargo_home" "${proxies[@]}" "$@"
}

build() {
    local cc=/cross/$target/cc includes=/cross/zig/ziglang/lib folder variables options=()
    local underscored=${target//-/_}
    prepare_tools
    prepare_compiler
    prepare_auditable
    variables=(CARGO_TARGET_DIR=/cross/build "CARGO_TARGET_${underscored^^}_LINKER=$cc"
        "CC_$underscored=$cc" "AR_$underscored=/cross/$target/ar"
        BINDGEN_EXTRA_CLANG_ARGS="-nostdinc -isystem $includes/include")
    for folder in $headers any-linux-any; do variables[4]+=" -isystem $includes/libc/include/$folder"; done
    if [ -n "$builds_std" ]; then
        # A module is linked to the C library of its server, not to one of its own.
        variables+=(RUSTC_BOOTSTRAP=1 RUSTFLAGS='-C target-feature=-crt-static -C link-self-contained=no')
        options=(-Zbuild-std=std,panic_abort)
    fi
    say "building the module for $target"
    inside PATH=/usr/bin:/cross/auditable/bin "${variables[@]}" cargo auditable build --release --locked --lib --target "$target" "${options[@]}" >&2
    cp "$CROSS/build/$target/release/libtokenbucket.so" "$CROSS/$target/"
    echo "$CROSS/$target/libtokenbucket.so"
}

# A server for musl, compiled from the source in Debian's archive, on the loader and C library of Debian's musl. Like
# Alpine's, it uses libc's allocator. musl's cannot tell the size of a block well enough for the server, which then puts a
# size before each block: a module gets blocks aligned to 8 bytes, not to 16.
musl_server() { # NAME
    local folder=$CROSS/$target/$1 program=${1%-*}-server suite
    local loader=$CROSS/$target/.libraries/usr/lib/x86_64-linux-musl/libc.so
    case "$1" in
        redis-7.0.15) suite=bookworm ;;
        valkey-8.1.1) suite=trixie ;;
        *) fail "no server for musl is known by the name $1: known are redis-7.0.15 and valkey-8.1.1" ;;
    esac
    if "$folder/server" --version 2>/dev/null | grep ' malloc=libc ' >&2; then return; fi
    prepare_compiler
    ARCHITECTURE=amd64
    from_debian "$CROSS/$target/.libraries" trixie musl
    say "compiling $1 for musl"
    rm -rf "$folder"
    source_from_debian "$folder/source" "$suite" "${1%-*}"
    # By default zig links programs for musl statically. That suits what configure tries, but a static server loads no
    # modules. Redis and Valkey have a name each for what the server is linked with. Without -fPIC what musl's library
    # has, like environ, would be copied to where something else is.
    make -s -j "$(nproc)" -C "$folder/source/src" CC="$CROSS/$target/cc -fPIC" REDIS_LDFLAGS=-dynamic SERVER_LDFLAGS=-dynamic \
        MALLOC=libc OPTIMIZATION=-O2 "$program" >"$folder/log" 2>&1 ||
        fail "$1 could not be compiled: see $folder/log"
    mv "$folder/source/src/$program" "$folder/"
    rm -rf "$folder/source"
    # shellcheck disable=SC2016 # for the script
    printf '#!/bin/bash\nLD_PRELOAD=${SERVER_PRELOAD:-} exec %s --argv0 %s %s "$@"\n' "$loader" "$program" "$folder/$program" >"$folder/server"
    chmod +x "$folder/server"
    "$folder/server" --version >&2
}

server() { # NAME
    case "$target" in
        *-musl) musl_server "$1" ;;
        x86_64-*) TREES=$TREES scripts/engines.sh "$CROSS/$target" "$1" >&2 ;;
        *)
            prepare_emulators
            # A plain processor: some of what the newest one can is slow to emulate.
            local emulator="$EMULATORS/qemu-$machine"
            [ "$machine" != aarch64 ] || emulator+=" -cpu cortex-a72"
            MACHINE=$machine EMULATOR=$emulator TREES=$TREES scripts/engines.sh "$CROSS/$target" "$1" >&2 ;;
    esac
    echo "$CROSS/$target/$1/server"
}

[ "$(uname -m)" = x86_64 ] || fail "the tools are fetched for x86_64 only"
[ $# -ge 2 ] || fail "usage: cross.sh build TARGET | server TARGET NAME | cc TARGET"
know "$2"
case "$1" in
    build) build ;;
    server) server "${3:?a name is needed}" ;;
    cc) prepare_compiler && echo "$CROSS/$target/cc" ;;
    *) fail "cross.sh does not know '$1'" ;;
esac
