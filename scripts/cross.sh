#!/usr/bin/env bash
# cross.sh WHAT TARGET [NAME]   Builds for another processor or C library. Prints a path on the last line:
#   build TARGET         the module: target/cross/TARGET/libtokenbucket.so
#   gate TARGET          the gate, static: target/cross/TARGET/tokenbucket-gate; TARGET is for musl
#   replay TARGET        tokenbucket-replay, likewise
#   server TARGET NAME   a server that runs here, in an emulator if needed: target/cross/TARGET/NAME/server
#   cc TARGET            a C compiler: target/cross/TARGET/cc
#   emulator TARGET      a command that runs programs for TARGET here, if this machine needs one
# TARGET: aarch64-unknown-linux-gnu, s390x-unknown-linux-gnu, x86_64-unknown-linux-gnu, x86_64-unknown-linux-musl or
# aarch64-unknown-linux-musl.
# NAME: a server that Debian 13 has for the processor, as in scripts/engines.sh; for musl redis-7.0.15 or valkey-8.1.1.
#
# Uses the Rust of Debian 13 with Debian's standard library for each target. For musl it builds the standard library from
# Debian's source. zig, from PyPI, compiles C and links: it can link against an old glibc (GLIBC) and against musl.
# Unpacks everything under target/cross (3 GB), installs nothing, and needs no root where users may create mount namespaces.
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

# Sets the names that zig and Debian have for a target, and the folders of its headers in zig, the most specific first.
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
        aarch64-unknown-linux-musl)
            machine=aarch64 builds_std=yes
            zig=aarch64-linux-musl headers="aarch64-linux-musl generic-musl aarch64-linux-any" ;;
        *) fail "no target is known by the name $target" ;;
    esac
    mkdir -p "$CROSS/$target"
}

# Unpacks the newest Rust of Debian 13, the standard libraries for other processors, and a C compiler for this one.
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
    # The maintainer scripts would have done this.
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

# cargo-auditable adds the list of crates to the module (1 kB), for cargo audit and other scanners.
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

# Wraps zig as cc and ar for cargo and make, and translates options that zig does not know. Works wherever target/cross is
# mounted.
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
        # Links the unwinder statically, because not every server image has libgcc_s.
        -lgcc_s | -lgcc_eh) argument=-lunwind ;;
        -static-pie) arguments+=(-static) argument=-pie ;;
        # rustc asks for a fixed address in static programs for arm64. Their code needs none.
        -no-pie) argument=-pie ;;
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

# Runs a command in the tree of tools with the project as /project, so that every build sees the same paths.
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

# Builds for the target. RUSTFLAGS are for musl.
cargo_build() { # RUSTFLAGS FILE ARGUMENT...
    local cc=/cross/$target/cc includes=/cross/zig/ziglang/lib folder variables options=()
    local underscored=${target//-/_} rustflags=$1 file=$2
    shift 2
    prepare_tools
    prepare_compiler
    prepare_auditable
    variables=(CARGO_TARGET_DIR=/cross/build "CARGO_TARGET_${underscored^^}_LINKER=$cc"
        "CC_$underscored=$cc" "AR_$underscored=/cross/$target/ar"
        BINDGEN_EXTRA_CLANG_ARGS="-nostdinc -isystem $includes/include")
    for folder in $headers any-linux-any; do variables[4]+=" -isystem $includes/libc/include/$folder"; done
    if [ -n "$builds_std" ]; then
        variables+=(RUSTC_BOOTSTRAP=1 RUSTFLAGS="$rustflags -C link-self-contained=no")
        options=(-Zbuild-std=std,panic_abort)
    fi
    say "building $file for $target"
    inside PATH=/usr/bin:/cross/auditable/bin "${variables[@]}" cargo auditable build --release --locked --target "$target" \
        "${options[@]}" "$@" >&2
    cp "$CROSS/build/$target/release/$file" "$CROSS/$target/"
    echo "$CROSS/$target/$file"
}

# A module uses the C library of its server.
build_module() {
    cargo_build '-C target-feature=-crt-static' libtokenbucket.so --lib
}

build_static() { # FOLDER
    [ -n "$builds_std" ] || fail "the $1 is static: its target is one for musl, not $target"
    cargo_build '-C target-feature=+crt-static' "tokenbucket-$1" --manifest-path "$1/Cargo.toml"
}

# Compiles a server for musl from Debian's source. Like Alpine's it uses libc's allocator. musl does not report block sizes
# precisely enough, so the server stores a size before each block, and modules get blocks aligned to 8 bytes, not to 16.
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
    # zig links statically for musl by default, but a static server loads no modules. Redis and Valkey name the linker flags
    # differently. Without -fPIC, the linker would copy symbols of musl, like environ, to addresses that are in use.
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

emulator() {
    [ "$machine" != x86_64 ] || return 0
    prepare_emulators
    # A simple processor, because newer features are slow to emulate.
    case "$machine" in
        aarch64) echo "$EMULATORS/qemu-$machine -cpu cortex-a72" ;;
        *) echo "$EMULATORS/qemu-$machine" ;;
    esac
}

server() { # NAME
    case "$target" in
        *-musl) musl_server "$1" ;;
        x86_64-*) TREES=$TREES scripts/engines.sh "$CROSS/$target" "$1" >&2 ;;
        *)
            MACHINE=$machine EMULATOR=$(emulator) TREES=$TREES scripts/engines.sh "$CROSS/$target" "$1" >&2 ;;
    esac
    echo "$CROSS/$target/$1/server"
}

[ "$(uname -m)" = x86_64 ] || fail "the tools are fetched for x86_64 only"
[ $# -ge 2 ] || fail "usage: cross.sh build TARGET | gate TARGET | replay TARGET | server TARGET NAME | cc TARGET | emulator TARGET"
know "$2"
case "$1" in
    build) build_module ;;
    gate | replay) build_static "$1" ;;
    emulator) emulator ;;
    server) server "${3:?a name is needed}" ;;
    cc) prepare_compiler && echo "$CROSS/$target/cc" ;;
    *) fail "cross.sh does not know '$1'" ;;
esac
