#!/usr/bin/env bash
# release.sh VERSION FOLDER   Writes all files of a release to FOLDER, and publishes nothing: those of dist.sh, the client packages,
# container images, the notes, and signed checksums. CONTRIBUTING.md says which commands publish them.
#   KEY       an SSH key that signs the checksums
#   DIST      files of dist.sh to take instead of building them, like target/dist after make test-dist
#   LANGUAGES of python, node, rust; IMAGES  of the Dockerfile's targets redis, valkey, gate
#   DRY=1     warns where a release would be refused
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "error: $*" >&2; exit 1; }
say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
refuse() { if [ -n "${DRY:-}" ]; then echo "warning: $*" >&2; else fail "$*"; fi; }

version=${1:?a version is needed, like 1.2.3}
out=$(realpath -m "${2:?a folder is needed}")
LANGUAGES=${LANGUAGES-python node rust}
IMAGES=${IMAGES-redis valkey gate}

for manifest in Cargo.toml gate/Cargo.toml clients/rust/Cargo.toml clients/python/src/tokenbucket/__init__.py clients/node/package.json; do
    said=$(sed -n 's/^[ "_]*version[ "_:=]*\([0-9.]*\)".*/\1/p' "$manifest" | head -1)
    [ "$version" = "$said" ] || fail "the version is $said, as $manifest says, not $version"
done
notes=$(sed -n "/^## \[$version\]/,/^## \[/{/^## /!p}" CHANGELOG.md)
[ -n "$notes" ] || fail "CHANGELOG.md has no section [$version]"
grep -Eq "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || refuse "the section [$version] of CHANGELOG.md has no date"
[ -z "$(git status --porcelain)" ] || refuse "there are changes that are not committed"
[ -n "${KEY:-}" ] || refuse "KEY=path names no SSH key: the checksums are not signed"
[ ! -e "$out" ] || fail "$out is there already"

mkdir -p "$out"
if [ -n "${DIST:-}" ]; then
    (cd "$DIST" && sha256sum --check --quiet SHA256SUMS)
    cp "$DIST"/* "$out"
else
    scripts/dist.sh "$version" "$out"
fi
printf '%s\n' "$notes" >"$out/NOTES.md"

for package in $LANGUAGES; do
    say "package for $package"
    case "$package" in
        python)
            rm -rf clients/python/dist
            make --no-print-directory -C clients/python build
            cp clients/python/dist/* "$out"
            ;;
        node)
            make --no-print-directory -C clients/node build
            (cd clients/node && npm pack --silent --pack-destination "$out" >/dev/null)
            ;;
        rust)
            rm -rf target/package
            # A lock file would want the core's crate from the registry, where it is not yet.
            for manifest in core clients/rust; do
                cargo package --quiet --no-verify --exclude-lockfile ${DRY:+--allow-dirty} --manifest-path "$manifest/Cargo.toml" \
                    --target-dir target/package
            done
            cp target/package/package/*.crate "$out"
            ;;
        *) fail "there is no package for $package" ;;
    esac
done
for image in $IMAGES; do
    say "image $image"
    docker build --quiet --tag "tokenbucket-$image:$version" --target "$image" .
    docker save "tokenbucket-$image:$version" | gzip -9n >"$out/tokenbucket-$image-$version.image.tar.gz"
done

say 'checksums'
(cd "$out" && rm -f SHA256SUMS && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
if [ -n "${KEY:-}" ]; then
    scripts/install.sh ssh
    ssh-keygen -q -Y sign -f "$KEY" -n tokenbucket "$out/SHA256SUMS"
fi
echo "the files of $version are in $out"
