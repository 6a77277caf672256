#!/usr/bin/env python3
"""licences.py MANIFEST TARGET   Prints the licence of every crate that the package of MANIFEST links for TARGET."""

import json
import pathlib
import subprocess
import sys

TITLE = """The binary contains parts of the Rust standard library (MIT or Apache-2.0, https://www.rust-lang.org) and of the packages below.
"""


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(manifest, target):
    """Names and versions, without what runs in the compiler alone."""
    lines = cargo("tree", "--locked", f"--manifest-path={manifest}", "--edges=normal,no-proc-macro", f"--target={target}",
                  "--prefix=none", "--no-dedupe", "--format={p}").splitlines()
    return sorted({tuple(line.split()[:2]) for line in lines if line})


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    names = ("LICEN", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")
    return [path for path in sorted(folder.iterdir()) if path.is_file() and path.name.upper().startswith(names)]


def main():
    manifest, target = sys.argv[1:]
    metadata = cargo("metadata", "--locked", "--format-version=1", f"--manifest-path={manifest}")
    packages = {(package["name"], "v" + package["version"]): package for package in json.loads(metadata)["packages"]}
    print(TITLE)
    for key in linked(manifest, target):
        package = packages[key]
        # The project's own packages have no source.
        if package["source"] is None:
            continue
        print("=" * 78, f"{' '.join(key)}: {package['license']}", package["repository"] or "", sep="\n")
        for path in texts(package):
            print(f"\n--- {path.name}\n", path.read_text(encoding="utf-8", errors="replace").rstrip(), sep="\n")
        print()


main()
