#!/usr/bin/env bash
# test-container.sh   Builds the images of the Dockerfile with buildah in a Debian 13, and starts their servers. Makes the base
# images from Debian packages, so it needs no image registry. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
root=target/test-container

scripts/chroot.sh make "$root" trixie buildah netavark crun redis-tools
scripts/chroot.sh make "$root/images/debian-12" bookworm
scripts/chroot.sh make "$root/images/debian-13" trixie
scripts/chroot.sh make "$root/images/redis" bookworm redis-server
scripts/chroot.sh make "$root/images/valkey" trixie valkey-server
# The last commit, as in a fresh clone.
mkdir -p "$root/project"
git archive HEAD | tar -x -C "$root/project"
# shellcheck disable=SC2016 # for the inner shell
scripts/chroot.sh run "$root" STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot bash -euc '
    # The defaults of buildah may be above what this machine allows.
    limits=(--ulimit nofile=20000:20000 --ulimit nproc=90000:90000)
    image() { # FOLDER NAME
        local container
        container=$(buildah from scratch)
        buildah add --quiet "$container" "/images/$1" /
        buildah config --env CARGO_HTTP_CAINFO="$CARGO_HTTP_CAINFO" "$container"
        buildah commit --quiet --rm "$container" "$2"
        rm -rf --one-file-system "/images/$1"
    }
    build() { # TARGET
        buildah build --quiet --pull=never --network=host "${limits[@]}" --layers \
            --build-arg REDIS=localhost/base-of-redis --build-arg VALKEY=localhost/base-of-valkey \
            --target "$1" --tag "$1" /project
    }
    works() { # TARGET
        local container command
        build "$1"
        container=$(buildah from --pull=never "${limits[@]}" "localhost/$1")
        command=$(buildah inspect --format "{{range .OCIv1.Config.Cmd}}{{.}} {{end}}" "$container")
        echo "starting $command"
        mkdir -p "/socket/$1"
        # shellcheck disable=SC2086 # words
        buildah run --network=host --volume "/socket/$1:/socket" "$container" -- \
            $command --port 0 --unixsocket /socket/socket >"/socket/$1/log" 2>&1 &
        /project/scripts/smoke.sh redis-cli -s "/socket/$1/socket" || { cat "/socket/$1/log"; exit 1; }
    }
    image debian-12 localhost/debian:12-slim
    image debian-13 localhost/debian:13-slim
    image redis localhost/base-of-redis
    image valkey localhost/base-of-valkey

    build module
    container=$(buildah from --pull=never localhost/module)
    held=$(cd "$(buildah mount "$container")" && find . -type f)
    [ "$held" = ./libtokenbucket.so ] || { echo "error: the image of the module holds $held" >&2; exit 1; }
    works redis
    works valkey

    build gate
    container=$(buildah from --pull=never "${limits[@]}" localhost/gate)
    buildah run --volume /project/gate/examples/limits:/limits "$container" -- tokenbucket-gate check /limits/edge.yaml
    # As Envoy Gateway starts it.
    buildah run "$container" -- /bin/ratelimit --version
'
rm -rf --one-file-system "$root"
