#!/usr/bin/env python3
"""licences.py TARGET   Prints the licence of every crate in the module for TARGET."""

import json
import pathlib
import subprocess
import sys

TITLE = """The module contains parts of the Rust standard library (MIT or Apache-2.0, https://www.rust-lang.org) and of the packages below.
"""


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(target):
    """Names and versions, without what runs in the compiler alone."""
    lines = cargo("tree", "--locked", "--package=tokenbucket", "--edges=normal,no-proc-macro", f"--target={target}",
                  "--prefix=none", "--no-dedupe", "--format={p}").splitlines()
    return sorted({tuple(line.split()[:2]) for line in lines if line and not line.startswith(("tokenbucket ", "tokenbucket-core "))})


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    names = ("LICEN", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")
    return [path for path in sorted(folder.iterdir()) if path.is_file() and path.name.upper().startswith(names)]


def main():
    packages = json.loads(cargo("metadata", "--locked", "--format-version=1"))["packages"]
    packages = {(package["name"], "v" + package["version"]): package for package in packages}
    print(TITLE)
    for key in linked(sys.argv[1]):
        package = packages[key]
        print("=" * 78, f"{' '.join(key)}: {package['license']}", package["repository"] or "", sep="\n")
        for path in texts(package):
            print(f"\n--- {path.name}\n", path.read_text(encoding="utf-8", errors="replace").rstrip(), sep="\n")
        print()


main()
