#!/usr/bin/env bash
# release.sh VERSION FOLDER   Writes all files of a release to FOLDER, and publishes nothing: those of dist.sh, the client packages,
# container images, the notes, and signed checksums. Builds from a clone of the last commit, and checks that all links and paths in
# the files lead somewhere. RELEASING.md says which commands publish them.
#   REPOSITORY  the address of the repository, as in the Makefile; MAINTAINER  of the Debian packages, name <address>
#   REGISTRY    of the images, like ghcr.io/owner, which is the default
#   KEY         an SSH key that signs the checksums, whose public half is in the file signers
#   DIST        files of dist.sh to take instead of building them, like target/dist after make test-dist
#   LANGUAGES   of python, node, rust; IMAGES  of the Dockerfile's targets redis, valkey, gate
#   DRY=1       warns where a release would be refused, and writes REPOSITORY into the clone if it is not in the commit
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
tools="git python ${KEY:+ssh} ${IMAGES:+docker}"
case " $LANGUAGES " in *' python '*) tools+=" venv" ;; esac
# shellcheck disable=SC2086 # words
scripts/install.sh $tools
notes=$(make --no-print-directory notes VERSION="$version")
[ -n "$notes" ] || fail "CHANGELOG.md has no section [$version]"
grep -Eq "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || refuse "the section [$version] of CHANGELOG.md has no date"
[ -z "$(git status --porcelain)" ] || refuse "there are changes that are not committed"
[ -n "${KEY:-}" ] || refuse "KEY=path names no SSH key: the checksums are not signed"
[ -z "${KEY:-}" ] || grep -qsF "release $(cut -d ' ' -f 1,2 "$KEY.pub")" signers ||
    refuse "the file signers lacks the public key: echo \"release \$(cat $KEY.pub)\" >signers, and commit it"
[ -n "${MAINTAINER:-}" ] || refuse "MAINTAINER='name <address>' is missing: the Debian packages name nobody who can be asked"
[ ! -e "$out" ] || fail "$out is there already"

here=$PWD
src=$(mktemp -d)/tokenbucket
trap 'rm -rf "$(dirname "$src")"' EXIT
git clone --quiet --no-tags . "$src"
cd "$src"
mkdir -p "$here/target"
ln -s "$here/target" target
if [ -z "${REPOSITORY:-}" ]; then
    refuse "REPOSITORY=https://example.org/owner/tokenbucket is missing: links and Go's paths lead nowhere"
elif ! grep -qx "export REPOSITORY ?= $REPOSITORY" Makefile; then
    refuse "the commit does not name $REPOSITORY: run make address REPOSITORY=$REPOSITORY, and commit"
    scripts/address.py write "$REPOSITORY"
    GIT_COMMITTER_DATE=$(git log -1 --format=%cI) git -c user.name=dry -c user.email=dry@run commit --quiet --all --message "Dry run"
fi
REGISTRY=${REGISTRY:-ghcr.io/$(basename "$(dirname "${REPOSITORY:-owner/tokenbucket}")")}

mkdir -p "$out"
if [ -n "${DIST:-}" ]; then
    (cd "$here" && cd "$DIST" && sha256sum --check --quiet SHA256SUMS && cp -- * "$out")
else
    scripts/dist.sh "$version" "$out"
fi
printf '%s\n' "$notes" >"$out/NOTES.md"

# The pages that packages ship are read outside of the repository.
if [ -n "${REPOSITORY:-}" ]; then
    for page in clients/{python,node,rust}/README.md; do
        absolute=$(scripts/address.py links "$REPOSITORY" "$version" "$page")
        printf '%s\n' "$absolute" >"$page"
    done
fi
for package in $LANGUAGES; do
    say "package for $package"
    case "$package" in
        python)
            python3 -m venv .build
            .build/bin/python -m pip install --quiet --disable-pip-version-check build
            .build/bin/python -m build --outdir "$out" clients/python >/dev/null
            ;;
        node)
            make --no-print-directory -C clients/node build
            (cd clients/node && npm pack --silent --pack-destination "$out" >/dev/null)
            ;;
        rust)
            rm -rf target/package
            # A lock file would want the core's crate from the registry, where it is not yet.
            for manifest in core clients/rust; do
                cargo package --quiet --no-verify --exclude-lockfile --allow-dirty --manifest-path "$manifest/Cargo.toml" --target-dir target/package
            done
            cp target/package/package/*.crate "$out"
            ;;
        *) fail "there is no package for $package" ;;
    esac
done
for image in $IMAGES; do
    say "image $image"
    name=$REGISTRY/tokenbucket-$image:$version
    docker build --quiet --tag "$name" --label "org.opencontainers.image.source=${REPOSITORY:-}" --target "$image" .
    docker save "$name" | gzip -9n >"$out/tokenbucket-$image-$version.image.tar.gz"
done
git checkout --quiet -- clients

if [ -n "${REPOSITORY:-}" ]; then
    scripts/address.py unreleased || refuse "these sentences say that nothing was released"
    say 'links and paths'
    scripts/address.py check "$REPOSITORY" "$version" . "$out"/*
fi

say 'checksums'
cd "$out"
rm -f SHA256SUMS
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
cd "$here"
[ -z "${KEY:-}" ] || ssh-keygen -q -Y sign -f "$KEY" -n tokenbucket "$out/SHA256SUMS"
echo "the files of $version are in $out"
