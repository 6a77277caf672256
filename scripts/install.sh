#!/usr/bin/env bash
# install.sh WHAT...   Installs what is missing, by the package manager of this machine:
#   cargo   as new as rust-version in Cargo.toml, or in MANIFEST
#   cc      a C compiler, for the linker and for headers
#   c++     a C++ compiler, for libFuzzer
#   libclang   for bindgen
#   redis   redis-server and redis-cli
#   dash    Debian's sh, for the tests of pages
#   engines what scripts/engines.sh needs
#   chroot  what scripts/chroot.sh needs
#   dist    what scripts/dist.sh needs
#   valgrind   for the guard and the benchmark that counts instructions
#   ssh     for release.sh, which signs, and its test
#   venv    for proofs/prove.sh
#   lint    rustfmt and clippy: only says how to install them
#   python, git   for scripts/address.py and release.sh
#   docker  for release.sh: only says that it is missing or not running
#   protoc  for the benchmark, which builds throttlecrab-server
set -euo pipefail

fail() { echo "error: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }
# libclang-cpp is another library.
has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] && return
    local folder name
    for folder in /usr/lib*/llvm*/lib* /usr/lib/* /usr/lib*; do
        for name in libclang.so "libclang-[0-9]"; do
            if compgen -G "$folder/$name*" >/dev/null; then return; fi
        done
    done
    return 1
}
has_redis() { has redis-cli && { has redis-server || has redis-check-rdb; }; }
# The oldest Rust that builds the module and its tests. Other packages state their own.
RUST=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "${MANIFEST:-$(dirname "$0")/../Cargo.toml}")
is_new_enough() { [ "$(printf '%s\n' "$RUST" "${1:-0}" | sort -V | head -1)" = "$RUST" ]; } # VERSION
rust_version() { cargo --version 2>/dev/null | cut -d ' ' -f 2; }
# Leaves a cargo alone that is not from a package: rustup's, for example.
is_old_debian_cargo() { has dpkg && dpkg -S "$(command -v cargo)" >/dev/null 2>&1 && ! is_new_enough "$(rust_version)"; }
check_cargo() { is_new_enough "$(rust_version)" || fail "cargo $(rust_version) is older than $RUST: install Rust by https://rustup.rs"; }
# Debian has a newer Rust beside its own, for browsers.
debian_cargo() {
    local name version
    for name in cargo cargo-web; do
        version=$(LC_ALL=C apt-cache policy "$name" | sed -n 's/^  Candidate: //p')
        if is_new_enough "$version"; then echo "$name"; return; fi
    done
    fail "no cargo of this system is as new as $RUST: install Rust by https://rustup.rs"
}
has_pip() { python3 -m pip --version >/dev/null 2>&1; }

# The packages of each package manager. Debian's redis-server package would start a service on port 6379; its
# redis-tools holds the same program and starts nothing.
packages() { # MANAGER WHAT
    case "$1:$2" in
        apt-get:cargo) debian_cargo && echo ca-certificates ;;
        *:cargo) echo cargo ;;
        apt-get:cc) echo gcc libc6-dev ;;
        apt-get:c++) echo g++ ;;
        dnf:c++) echo gcc-c++ ;;
        pacman:c++) echo gcc ;;
        apk:c++) echo g++ ;;
        dnf:cc | pacman:cc) echo gcc ;;
        apk:cc) echo gcc musl-dev ;;
        apt-get:libclang) echo libclang1 ;;
        dnf:libclang) echo clang-libs ;;
        pacman:libclang) echo clang ;;
        apk:libclang) echo clang-libclang ;;
        apt-get:redis) echo redis-tools ;;
        *:redis) echo redis ;;
        apt-get:dist) echo python3 python3-pip git ca-certificates debian-archive-keyring ;;
        apt-get:chroot) echo mmdebstrap debian-archive-keyring ;;
        apt-get:engines) echo python3 python3-pip ca-certificates debian-archive-keyring ;;
        *:valgrind) echo valgrind libc6-dbg ;;
        apt-get:protoc) echo protobuf-compiler libprotobuf-dev ;;
        *:protoc) echo protobuf ;;
        apt-get:ssh) echo openssh-client ;;
        *:ssh) echo openssh ;;
        *:git) echo git ;;
        *:dash) echo dash ;;
        pacman:python) echo python ;;
        *:python) echo python3 ;;
        apt-get:venv) echo python3-venv ;;
        *:venv) echo python3 ;;
        *) fail "no package is known for $2 under $1: install it by hand" ;;
    esac
}

manager() {
    for known in apt-get dnf apk pacman; do
        if has "$known"; then echo "$known"; return; fi
    done
    fail "no package manager that is known here (apt-get, dnf, apk, pacman): install $* by hand"
}

# Prints a dot every two seconds, because an installation may take minutes, and keeps the output for a failure.
with_dots() { # COMMAND...
    local pid
    "$@" >"$log" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do printf . && sleep 2; done
    echo
    wait "$pid"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Waits ten minutes for another program that installs packages, as Debian does by itself after a boot. apt's own
# DPkg::Lock::Timeout does not cover the lists of packages.
apt() { # ARGUMENT...
    local deadline=$((SECONDS + 600)) lock=
    until with_dots "${as_root[@]}" env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends "$@"; do
        [ -n "$lock" ] || lock=$(grep -m 1 -o 'Could not get lock.*' "$log") || return 1
        grep -q 'Could not get lock' "$log" && [ $SECONDS -lt $deadline ] || return 1
        echo "waiting for another program that installs packages: $lock"
    done
}

install() { # WHAT...
    local manager what names=() as_root=()
    manager=$(manager "$*")
    if [ "$(id -u)" != 0 ]; then
        has sudo || fail "$* is missing and there is no sudo: run 'scripts/install.sh $*' as root"
        as_root=(sudo)
    fi
    # packages() asks apt for candidates.
    if [ "$manager" = apt-get ]; then
        echo "missing or too old: $*. Reading the lists of packages"
        apt update || fail "apt-get update failed, is there a network? It says: $(tail -n 1 "$log")"
    fi
    for what in "$@"; do
        # shellcheck disable=SC2207 # one word per package
        names+=($(packages "$manager" "$what"))
    done
    echo "installing system packages with ${as_root[*]:+sudo }$manager: ${names[*]}"
    case "$manager" in
        apt-get) apt install "${names[@]}" ;;
        dnf) with_dots "${as_root[@]}" dnf -q -y install "${names[@]}" ;;
        apk) with_dots "${as_root[@]}" apk add -q "${names[@]}" ;;
        pacman) with_dots "${as_root[@]}" pacman -S --noconfirm --needed "${names[@]}" ;;
    esac || fail "$manager could not install ${names[*]}, is there a network? It says: $(tail -n 1 "$log")"
}

missing=()
for what in "$@"; do
    case "$what" in
        cargo)
            if ! has cargo || is_old_debian_cargo; then missing+=(cargo); else check_cargo; fi
            ;;
        cc) has cc || missing+=(cc) ;;
        c++) has c++ || missing+=(c++) ;;
        libclang) has_libclang || missing+=(libclang) ;;
        redis) has_redis || missing+=(redis) ;;
        valgrind) has valgrind || missing+=(valgrind) ;;
        protoc) has protoc || missing+=(protoc) ;;
        ssh) has ssh-keygen || missing+=(ssh) ;;
        lint) { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
            fail "rustfmt or clippy is missing: run 'rustup component add rustfmt clippy'" ;;
        python) has python3 || missing+=(python) ;;
        dash) has dash || missing+=(dash) ;;
        git) has git || missing+=(git) ;;
        docker) docker info >/dev/null 2>&1 || fail "docker, which builds the images, is missing or not running: start it, or leave them out with IMAGES=" ;;
        venv) python3 -c 'import ensurepip' 2>/dev/null || missing+=(venv) ;;
        chroot) has mmdebstrap || missing+=(chroot) ;;
        dist) { has dpkg-deb && has git && has_pip; } || missing+=(dist) ;;
        engines)
            has apt-get && has dpkg-deb ||
                fail "the servers are fetched from Debian's packages, which needs apt-get: on other systems test one server with 'make test SERVER=/path/to/redis-server'"
            has_pip || missing+=(engines)
            ;;
        *) fail "install.sh does not know '$what'" ;;
    esac
done
# One list, so that the reader sees all of it before anything is installed.
[ ${#missing[@]} = 0 ] || install "${missing[@]}"
case " ${missing[*]} " in *' cargo '*) check_cargo ;; esac
