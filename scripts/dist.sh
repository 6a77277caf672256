#!/usr/bin/env bash
# dist.sh VERSION [FOLDER]   Writes the files of a release to FOLDER (target/dist): a tarball of the module for each platform in
# TARGETS, and of the gate and tokenbucket-replay for each in GATE_TARGETS; Debian packages of the module for glibc and of the gate; SBOMs and checksums.
# The build is reproducible: the same commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

CYCLONEDX=0.5.9
TARGETS=${TARGETS:-x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl}
GATE_TARGETS=${GATE_TARGETS:-x86_64-unknown-linux-musl aarch64-unknown-linux-musl}
# Debian's systemd units let servers load modules from here.
MODULES=usr/lib/redis/modules

fail() { echo "error: $*" >&2; exit 1; }
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

version=${1:?a version is needed, like 1.2.3}
out=$(realpath -m "${2:-target/dist}")
for manifest in Cargo.toml gate/Cargo.toml replay/Cargo.toml; do
    said=$(sed -n 's/^version = "\(.*\)"/\1/p' "$manifest")
    [ "$version" = "$said" ] || fail "the version is $said, as $manifest says, not $version"
done
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "warning: this is not what was committed" >&2
# The date of every file. dpkg-deb reads this variable.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

# Sets the names that releases and Debian have for a processor, and the C library.
know() { # TARGET
    libc=${1##*-}
    [ "$libc" = musl ] || libc=glibc
    case "${1%%-*}" in
        x86_64) machine=x86_64 architecture=amd64 ;;
        aarch64) machine=arm64 architecture=arm64 ;;
        *) fail "no name is known for the processor of $1" ;;
    esac
}

# Copies the files that every platform gets beside a binary.
papers() { # MANIFEST TARGET FOLDER
    install -m 644 LICENSE CHANGELOG.md "$3"
    scripts/licences.py "$1" "$2" >"$3/THIRD-PARTY-LICENCES"
}

module_papers() { # TARGET FOLDER
    papers Cargo.toml "$1" "$2"
    install -m 644 redis.conf.example README.md "$2"
    # Its links lead to the pages of the repository, once that has an address.
    [ -z "${REPOSITORY:-}" ] || scripts/address.py links "$REPOSITORY" "$version" README.md >"$2/README.md"
}

# A static program contains its C library.
static_papers() { # MANIFEST TARGET FOLDER
    papers "$@"
    { printf '%s\n' "$(printf '=%.0s' {1..78})" 'musl: MIT' https://musl.libc.org '' && cat target/cross/zig/ziglang/lib/libc/musl/COPYRIGHT; } \
        >>"$3/THIRD-PARTY-LICENCES"
}

# run.py is for a clone of the repository.
gate_papers() { # TARGET FOLDER
    static_papers gate/Cargo.toml "$1" "$2"
    cp -r gate/examples "$2/"
    rm "$2/examples/run.py"
}

# Packs the folder of this name.
tarball() { # NAME
    tar --create --directory "$work" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" "$1" | gzip -9n >"$out/$1.tar.gz"
}

# Builds a Debian package of the folder of this name. Reads the rest of its control file.
debian() { # NAME ARCHITECTURE
    local folder=$work/$1-$2
    mv "$folder/usr/share/doc/$1"/{LICENSE,copyright}
    cat >"$folder/DEBIAN/control" <<CONTROL
Package: $1
Version: $version
Architecture: $2
Priority: optional
Maintainer: ${MAINTAINER:-$(sed -n 's/^Copyright (c) [0-9]* //p' LICENSE)}
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$folder" | cut -f 1)
CONTROL
    [ -z "${REPOSITORY:-}" ] || echo "Homepage: $REPOSITORY" >>"$folder/DEBIAN/control"
    cat >>"$folder/DEBIAN/control"
    find "$folder" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$folder" "$out/${1}_${version}_$2.deb" >/dev/null
}

module_tarball() { # TARGET MODULE NAME
    # Servers load only executable modules.
    install -D -m 755 "$2" "$work/$3/libtokenbucket.so"
    module_papers "$1" "$work/$3"
    tarball "$3"
}

module_debian() { # TARGET MODULE ARCHITECTURE
    local folder=$work/tokenbucket-$3
    mkdir -p "$folder"/{DEBIAN,usr/share/doc/tokenbucket}
    install -D -m 755 "$2" "$folder/$MODULES/libtokenbucket.so"
    module_papers "$1" "$folder/usr/share/doc/tokenbucket"
    cat >"$folder/DEBIAN/postinst" <<POSTINST
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
    echo "tokenbucket: add this line to redis.conf or valkey.conf and restart the server when it suits you:"
    echo "    loadmodule /$MODULES/libtokenbucket.so"
fi
POSTINST
    chmod 755 "$folder/DEBIAN/postinst"
    debian tokenbucket "$3" <<CONTROL
Section: database
Depends: libc6 (>= 2.17)
Suggests: redis-server | valkey-server
Description: exact token bucket rate limiter inside Redis and Valkey
 A module that a server loads. Any client in any language limits with one
 command, decided in the server, on the server's clock.
CONTROL
}

gate_tarball() { # TARGET GATE NAME
    install -D -m 755 "$2" "$work/$3/tokenbucket-gate"
    install -m 644 gate/debian/tokenbucket-gate.service "$work/$3"
    gate_papers "$1" "$work/$3"
    tarball "$3"
}

replay_tarball() { # TARGET PROGRAM NAME
    install -D -m 755 "$2" "$work/$3/tokenbucket-replay"
    static_papers replay/Cargo.toml "$1" "$work/$3"
    tarball "$3"
}

gate_debian() { # TARGET GATE ARCHITECTURE
    local folder=$work/tokenbucket-gate-$3 from=gate/debian
    mkdir -p "$folder"/{DEBIAN,usr/share/doc/tokenbucket-gate}
    install -D -m 755 "$2" "$folder/usr/bin/tokenbucket-gate"
    install -D -m 644 -t "$folder/usr/lib/systemd/system" "$from/tokenbucket-gate.service"
    # It may hold a password. systemd reads it as root.
    install -D -m 640 "$from/default" "$folder/etc/default/tokenbucket-gate"
    install -D -m 644 -t "$folder/etc/tokenbucket-gate" gate/examples/check.yaml
    install -D -m 644 -t "$folder/etc/tokenbucket-gate/config" gate/examples/limits/edge.yaml
    gate_papers "$1" "$folder/usr/share/doc/tokenbucket-gate"
    install -m 755 -t "$folder/DEBIAN" "$from"/{postinst,prerm,postrm}
    (cd "$folder" && find etc -type f -printf '/%p\n' | LC_ALL=C sort >DEBIAN/conffiles)
    debian tokenbucket-gate "$3" <<CONTROL
Section: net
Suggests: tokenbucket, ca-certificates
Description: rate limits for Envoy and other proxies, decided in Redis or Valkey
 A service that Envoy asks over gRPC, in the place of envoyproxy/ratelimit, and
 Caddy, nginx, HAProxy and Traefik over HTTP. The module of the package
 tokenbucket decides, on this machine or another.
CONTROL
}

bill_of_materials() { # NAME FOLDER TARGET
    [ -x target/tools/bin/cargo-cyclonedx ] ||
        cargo install --locked --root target/tools --version "$CYCLONEDX" cargo-cyclonedx
    PATH=$PWD/target/tools/bin:$PATH cargo cyclonedx --quiet --manifest-path "$2/Cargo.toml" --format json --spec-version 1.5 --target "$3" \
        --no-build-deps --override-filename "$1-sbom"
    scripts/sbom.py "$SOURCE_DATE_EPOCH" "$2/$1-sbom.json" >"$out/$1-$version.cdx.json"
    rm -f {.,benches,core,gate,proofs,replay}/"$1-sbom.json"
}

scripts/install.sh cargo cc dist
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in $TARGETS; do
    say "the module for $target"
    module=$(scripts/cross.sh build "$target" | tail -1)
    know "$target"
    module_tarball "$target" "$module" "tokenbucket-$version-linux-$machine-$libc"
    if [ "$libc" = glibc ]; then module_debian "$target" "$module" "$architecture"; fi
done
for target in $GATE_TARGETS; do
    say "the gate for $target"
    gate=$(scripts/cross.sh gate "$target" | tail -1)
    know "$target"
    gate_tarball "$target" "$gate" "tokenbucket-gate-$version-linux-$machine"
    gate_debian "$target" "$gate" "$architecture"
    say "tokenbucket-replay for $target"
    replay=$(scripts/cross.sh replay "$target" | tail -1)
    replay_tarball "$target" "$replay" "tokenbucket-replay-$version-linux-$machine"
done
say 'bills of materials'
bill_of_materials tokenbucket . x86_64-unknown-linux-gnu
bill_of_materials tokenbucket-gate gate x86_64-unknown-linux-musl
bill_of_materials tokenbucket-replay replay x86_64-unknown-linux-musl
(cd "$out" && sha256sum -- *.tar.gz *.deb *.json >SHA256SUMS && cat SHA256SUMS)
