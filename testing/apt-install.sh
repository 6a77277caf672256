#!/bin/sh
# apt-install.sh PACKAGE...: installs what is missing, with sudo if need be, or says in one line what to install.
set -eu
missing=
for package in "$@"; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then sudo=
elif command -v sudo >/dev/null; then sudo=sudo
else echo "please install first, as root: apt-get install$missing" >&2; exit 1
fi
command -v apt-get >/dev/null || { echo "please install first:$missing" >&2; exit 1; }

echo "installing:$missing"
apt() { $sudo env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 "$@"; }
# A fresh machine has no package lists, and old ones name files that are gone.
apt install -y --no-install-recommends $missing || { apt update && apt install -y --no-install-recommends $missing; }
