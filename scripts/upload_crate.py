#!/usr/bin/env python3
"""upload_crate.py FILE.crate…   Publishes crates as they are: the bytes whose checksum is signed, with the README of the release.
`cargo publish` would pack the tree again. Needs Python 3.11.

CARGO_REGISTRY_TOKEN  a token of crates.io that may publish; REGISTRY  another registry's address, for a test"""

import json
import os
import struct
import sys
import tarfile
import tomllib
import urllib.error
import urllib.request

KINDS = {"dependencies": "normal", "dev-dependencies": "dev", "build-dependencies": "build"}


def dependency(name, found, kind, target):
    """Describes a dependency as cargo does: `name` is the crate, and what the manifest calls it comes last."""
    found = {"version": found} if isinstance(found, str) else found
    crate = found.get("package", name)
    renamed = {"explicit_name_in_toml": name} if crate != name else {}
    return {
        "name": crate,
        "version_req": requirement(found["version"]),
        "features": found.get("features", []),
        "optional": found.get("optional", False),
        "default_features": found.get("default-features", True),
        "target": target,
        "kind": kind,
        "registry": None,
        **renamed,
    }


def requirement(version):
    return f"^{version}" if version[0].isdigit() else version


def dependencies(manifest):
    tables = [(None, manifest), *manifest.get("target", {}).items()]
    for target, table in tables:
        for key, kind in KINDS.items():
            for name, found in table.get(key, {}).items():
                yield dependency(name, found, kind, target)


def description(crate):
    """Returns what the registry wants to know beside the file, which is in its manifest."""
    with tarfile.open(crate) as archive:
        root = os.path.commonpath(archive.getnames())
        read = lambda name: archive.extractfile(f"{root}/{name}").read().decode()
        manifest = tomllib.loads(read("Cargo.toml"))
        package = manifest["package"]
        readme = package.get("readme")
        page = read(readme) if isinstance(readme, str) else None
    taken = ("name", "description", "documentation", "homepage", "license", "repository", "links")
    return {
        **{key: package.get(key) for key in taken},
        "vers": package["version"],
        "deps": list(dependencies(manifest)),
        "features": manifest.get("features", {}),
        "authors": package.get("authors", []),
        "readme": page,
        "readme_file": readme if page else None,
        "keywords": package.get("keywords", []),
        "categories": package.get("categories", []),
        "license_file": package.get("license-file"),
        "badges": {},
        "rust_version": package.get("rust-version"),
    }


def publish(crate):
    about = json.dumps(description(crate)).encode()
    with open(crate, "rb") as file:
        content = file.read()
    body = struct.pack("<I", len(about)) + about + struct.pack("<I", len(content)) + content
    address = os.environ.get("REGISTRY", "https://crates.io") + "/api/v1/crates/new"
    headers = {"Authorization": os.environ["CARGO_REGISTRY_TOKEN"], "User-Agent": "tokenbucket-release"}
    request = urllib.request.Request(address, body, headers, method="PUT")
    try:
        urllib.request.urlopen(request).close()
    except urllib.error.HTTPError as error:
        sys.exit(f"error: {crate} was refused: {error.read().decode(errors='replace')}")
    print(f"published {crate}")


if not sys.argv[1:] or "CARGO_REGISTRY_TOKEN" not in os.environ:
    sys.exit(f"error: a crate and CARGO_REGISTRY_TOKEN are needed\n{__doc__}")
for name in sys.argv[1:]:
    publish(name)
