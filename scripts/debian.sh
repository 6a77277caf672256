# shellcheck shell=bash
# debian.sh   Functions to source: unpack packages of any Debian suite and architecture into folders, without root and without
# touching this machine's packages. apt keeps its state in $TREES. $ARCHITECTURE is amd64, arm64 or s390x.

# The mirror that this machine already uses.
debian_mirror() {
    local mirror
    # shellcheck disable=SC2016 # for apt
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Component: main' | grep -v security | head -1)
    echo "${mirror:?no Debian mirror is configured}"
}

# Gives apt a private tree for one suite, so that this machine's package lists stay as they are.
prepare_suite() { # SUITE
    local suite=$1 tree=$TREES/$1-$ARCHITECTURE mirror kind
    [ -e "$tree/ready" ] && return
    mkdir -p "$tree"/{lists/partial,cache/archives/partial,preferences}
    : >"$tree/status"
    mirror=$(debian_mirror)
    for kind in deb deb-src; do
        echo "$kind [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
    done >"$tree/sources.list"
    cat >"$tree/apt.conf" <<CONF
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
APT::Architecture "$ARCHITECTURE"; APT::Architectures { "$ARCHITECTURE"; }; APT::Install-Recommends "false";
Dir::Etc::sourcelist "$tree/sources.list"; Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "$tree/preferences";
Dir::State "$tree"; Dir::State::lists "$tree/lists"; Dir::State::status "$tree/status"; Dir::Cache "$tree/cache";
APT::Sandbox::User "root"; Acquire::Languages "none"; Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
    apt-get -qq -c "$tree/apt.conf" update
    touch "$tree/ready"
}

suite_apt() { # SUITE ARGUMENT...
    prepare_suite "$1"
    apt-get -qq -c "$TREES/$1-$ARCHITECTURE/apt.conf" "${@:2}"
}

unpack_all() { # FOLDER DESTINATION
    local package
    for package in "$1"/*.deb; do dpkg-deb -x "$package" "$2"; done
}

# Unpacks these packages without their dependencies.
from_debian() { # DESTINATION SUITE PACKAGE...
    local destination=$1 suite=$2
    shift 2
    mkdir -p "$destination/packages"
    (cd "$destination/packages" && suite_apt "$suite" download "$@")
    unpack_all "$destination/packages" "$destination"
    rm -rf "$destination"/{packages,etc,var,lib/systemd,usr/share}
}

# Unpacks these packages with all dependencies, enough for a chroot. Runs no maintainer scripts.
from_debian_whole() { # DESTINATION SUITE PACKAGE...
    local destination=$1 suite=$2 archives=$TREES/$2-$ARCHITECTURE/cache/archives
    shift 2
    suite_apt "$suite" --download-only --yes install "$@" >/dev/null
    mkdir -p "$destination"
    unpack_all "$archives" "$destination"
    rm -rf "$archives"
}

# Unpacks the upstream source of a package, without Debian's patches.
source_from_debian() { # DESTINATION SUITE PACKAGE
    local destination=$1 archive
    mkdir -p "$destination"
    (cd "$destination" && suite_apt "$2" --download-only source "$3" >/dev/null)
    archive=$(compgen -G "$destination/*.orig.tar.*")
    tar -xf "$archive" -C "$destination" --strip-components=1
}
