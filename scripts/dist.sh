#!/usr/bin/env bash
# dist.sh VERSION [FOLDER]   Writes the files of a release to FOLDER (target/dist): a tarball for each platform in TARGETS, a
# Debian package for glibc, an SBOM, and checksums. The build is reproducible: the same commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

CYCLONEDX=0.5.9
TARGETS=${TARGETS:-x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl}
# Debian's systemd units let servers load modules from here.
MODULES=usr/lib/redis/modules

fail() { echo "error: $*" >&2; exit 1; }
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

version=${1:?a version is needed, like 1.2.3}
out=$(realpath -m "${2:-target/dist}")
said=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
[ "$version" = "$said" ] || fail "the version is $said, as Cargo.toml says, not $version"
[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "warning: this is not what was committed" >&2
# The date of every file. dpkg-deb reads this variable.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

# Copies the files that every platform gets beside the module.
papers() { # TARGET FOLDER
    install -m 644 redis.conf.example LICENSE README.md CHANGELOG.md "$2"
    scripts/licences.py "$1" >"$2/THIRD-PARTY-LICENCES"
}

tarball() { # TARGET MODULE NAME
    local folder=$work/$3
    mkdir -p "$folder"
    install -m 755 "$2" "$folder/libtokenbucket.so"
    papers "$1" "$folder"
    tar --create --directory "$work" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$SOURCE_DATE_EPOCH" "$3" | gzip -9n >"$out/$3.tar.gz"
}

debian() { # TARGET MODULE ARCHITECTURE
    local folder=$work/$3
    mkdir -p "$folder"/{DEBIAN,"$MODULES",usr/share/doc/tokenbucket}
    # Servers from 7.0 on load only executable modules.
    install -m 755 "$2" "$folder/$MODULES/libtokenbucket.so"
    papers "$1" "$folder/usr/share/doc/tokenbucket"
    mv "$folder/usr/share/doc/tokenbucket/LICENSE" "$folder/usr/share/doc/tokenbucket/copyright"
    cat >"$folder/DEBIAN/control" <<CONTROL
Package: tokenbucket
Version: $version
Architecture: $3
Section: database
Priority: optional
Maintainer: $(sed -n 's/^Copyright (c) [0-9]* //p' LICENSE)
Installed-Size: $(du -sk --apparent-size "$folder/usr" | cut -f 1)
Depends: libc6 (>= 2.17)
Suggests: redis-server | valkey-server
Description: exact token bucket rate limiter inside Redis and Valkey
 A module that a server loads. Any client in any language limits with one
 command, decided in the server, on the server's clock.
CONTROL
    cat >"$folder/DEBIAN/postinst" <<POSTINST
#!/bin/sh
set -e
if [ "\$1" = configure ]; then
    echo "tokenbucket: add this line to redis.conf or valkey.conf and restart the server when it suits you:"
    echo "    loadmodule /$MODULES/libtokenbucket.so"
fi
POSTINST
    chmod 755 "$folder/DEBIAN/postinst"
    find "$folder" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$folder" "$out/tokenbucket_${version}_$3.deb" >/dev/null
}

bill_of_materials() {
    [ -x target/tools/bin/cargo-cyclonedx ] ||
        cargo install --locked --root target/tools --version "$CYCLONEDX" cargo-cyclonedx
    PATH=$PWD/target/tools/bin:$PATH cargo cyclonedx --quiet --format json --spec-version 1.5 --target x86_64-unknown-linux-gnu --no-build-deps \
        --override-filename tokenbucket-sbom
    scripts/sbom.py "$SOURCE_DATE_EPOCH" tokenbucket-sbom.json >"$out/tokenbucket-$version.cdx.json"
    rm -f tokenbucket-sbom.json {benches,core}/tokenbucket-sbom.json
}

scripts/install.sh cargo dist
rm -rf "$out"
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for target in $TARGETS; do
    say "$target"
    module=$(scripts/cross.sh build "$target" | tail -1)
    machine=${target%%-*} libc=${target##*-}
    [ "$libc" = musl ] || libc=glibc
    case "$machine" in x86_64) architecture=amd64 ;; aarch64) architecture=arm64 machine=arm64 ;; esac
    tarball "$target" "$module" "tokenbucket-$version-linux-$machine-$libc"
    if [ "$libc" = glibc ]; then debian "$target" "$module" "$architecture"; fi
done
say 'bill of materials'
bill_of_materials
(cd "$out" && sha256sum -- *.tar.gz *.deb *.json >SHA256SUMS && cat SHA256SUMS)
