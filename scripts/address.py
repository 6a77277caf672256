#!/usr/bin/env python3
"""The address of the repository, which is unknown until somebody publishes it: REPOSITORY in the Makefile.

address.py write URL               writes it into this tree: Go's import paths, metadata of packages, runbooks
address.py unreleased              fails if pages of this tree say that nothing was released, and prints where
address.py links URL VERSION FILE  prints a page of this tree with the links that work outside of it
address.py check URL VERSION PATH…  fails if a link or path in a release file, or in a source tree, leads nowhere
"""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# What a page says while nothing was released. Such a sentence is edited by hand.
UNRELEASED = re.compile(r"not (released|published) yet|on no (registry|index)|is on a registry yet|no release so far|Nothing was released|in a clone of the repository|is a clone of", re.I)
# Go's packages are in clients/go, which is the module `tokenbucket` until it has an address.
GO = "clients/go"
IMPORT = re.compile(r'^(\s*(?:import )?(?:[\w.]+ )?)"tokenbucket((?:/[\w/]+)?)"$', re.M)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def go_path(url):
    return f"{url.split('://', 1)[1]}/{GO}"


def files(root="."):
    """The paths of this project's own files."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - {".git", "target", "node_modules", ".venv", "dist", ".node", "__pycache__"})
        yield from (Path(folder, name) for name in sorted(names) if not Path(folder, name).is_symlink())


def replace(path, old, new):
    text = Path(path).read_text()
    if old not in text:
        sys.exit(f"error: {path} does not say: {old}")
    Path(path).write_text(text.replace(old, new))


def sort_imports(text):
    """Sorts each paragraph of imports, as gofmt does."""

    def block(found):
        paragraphs = found[2].split("\n\n")
        lines = (sorted(lines.split("\n"), key=lambda line: line.partition('"')[2]) for lines in paragraphs)
        return found[1] + "\n\n".join("\n".join(line) for line in lines) + found[3]

    return re.sub(r"(^import \(\n)(.*?)(\n\))", block, text, flags=re.M | re.S)


def write_go(go):
    for path in files():
        if path.suffix not in (".go", ".mod", ".md") or "vendor" in path.parts:
            continue
        text = path.read_text()
        if path.suffix == ".mod":
            new = re.sub(r"\btokenbucket(?=(/\w+)?( v0| =>|$))", go, text, flags=re.M)
            new = new.replace(f"{go}/conformance", f"{go.removesuffix(GO)}clients/conformance/drivers/go")
        else:
            new = IMPORT.sub(rf'\1"{go}\2"', text)
            new = new.replace("| `tokenbucket` | limiters", f"| `{go}` | limiters")
            new = re.sub(r'([`"])tokenbucket(/(?:goredis|redisrate|httplimit|tokenbuckettest)[`"])', rf"\1{go}\2", new)
            new = sort_imports(new) if new != text else text
        if new != text:
            path.write_text(new)


def write(url):
    if not re.fullmatch(r"https://[\w.-]+\.\w+(/[\w.-]+){2,}", url):
        sys.exit(f"error: REPOSITORY must be an address like https://example.org/owner/tokenbucket, not '{url}'")
    makefile = Path("Makefile").read_text()
    if f"\nexport REPOSITORY ?= {url}\n" in makefile:
        return
    replace("Makefile", "\nexport REPOSITORY ?=\n", f"\nexport REPOSITORY ?= {url}\n")
    go = go_path(url)
    for path in files():
        if path.suffix == ".md" and "./clients/python" in (text := path.read_text()):
            path.write_text(re.sub(r"pip install ('?)\./clients/python", r"pip install \1tokenbucket-redis", text))
    write_go(go)
    for manifest in ("Cargo.toml", "core/Cargo.toml", "gate/Cargo.toml", "clients/rust/Cargo.toml"):
        replace(manifest, '\nlicense = "MIT"\n', f'\nlicense = "MIT"\nrepository = "{url}"\n')
    names = {"Homepage": "", "Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    urls = "".join(f'{name} = "{url}{path}"\n' for name, path in names.items())
    replace("clients/python/pyproject.toml", "\n[tool.hatch.version]\n", f"\n[project.urls]\n{urls}\n[tool.hatch.version]\n")
    repository = {"type": "git", "url": f"git+{url}.git", "directory": "clients/node"}
    replace("clients/node/package.json", '  "license": "MIT",\n', f'  "license": "MIT",\n  "homepage": "{url}",\n  "repository": {json.dumps(repository)},\n')
    replace("examples/monitoring/alerts.yml", 'runbook: "docs/', f'runbook: "{url}/blob/main/docs/')


def links(url, version, path):
    def absolute(found):
        target, _, anchor = found[2].partition("#")
        if "://" in target or not target:
            return found[0]
        target = os.path.relpath(os.path.normpath(Path(path).parent / target))
        view = "raw" if target.endswith((".svg", ".png")) else "tree" if Path(target).is_dir() else "blob"
        return f"{found[1]}{url}/{view}/v{version}/{target}{'#' + anchor if anchor else ''}{found[3]}"

    # Not in blocks of code.
    parts = re.split(r"(^```.*?^```$)", Path(path).read_text(), flags=re.M | re.S)
    return "".join(part if part.startswith("```") else LINK.sub(absolute, part) for part in parts)


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    plain = (re.sub(r"\]\(.*?\)", "", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def dead_links(url, version, text, beside):
    """The links of a page that lead to no file of this tree, and of no file beside the page."""
    for target in (found[1] for found in LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))):
        path, _, anchor = target.partition("#")
        own = re.match(rf"{re.escape(url)}/(?:blob|tree|raw)/(?:v{re.escape(version)}|main)/(.*)", path)
        if own:
            leads = Path(own[1]).exists() and (not anchor or anchor in anchors(Path(own[1]).read_text()))
        elif path.startswith(url):
            leads = path in (f"{url}/releases", f"{url}/issues", url)
        else:
            leads = "://" in path or (anchor in anchors(text) if not path else path in beside)
        if not leads:
            yield target


def members(path):
    """The name and text of each file in an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name).decode(errors="replace") for name in archive.namelist()}
    data = path.read_bytes()
    found = {}
    if path.suffix == ".deb":
        found["control"] = subprocess.run(["dpkg-deb", "--field", path], check=True, capture_output=True, text=True).stdout
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isfile():
                found[member.name] = archive.extractfile(member).read().decode(errors="replace")
    return found


# The file of each kind of package that names the repository.
METADATA = {".whl": "METADATA", ".tgz": "package.json", ".crate": "Cargo.toml", ".deb": "control"}


def faults_of_file(url, version, path):
    if path.suffix == ".md":
        contents = {path.name: path.read_text()}
    elif path.name.endswith((".tar.gz", ".whl", ".tgz", ".crate", ".deb")) and ".image." not in path.name:
        contents = members(path)
    else:
        return
    metadata = METADATA.get(path.suffix)
    if metadata and not any(name.endswith(metadata) and url in text for name, text in contents.items()):
        yield f"its {metadata} does not name {url}"
    if path.suffix == ".deb" and not re.search(r"^Maintainer: .+ <\S+@\S+>$", contents["control"], re.M):
        yield "its Maintainer has no address: MAINTAINER='name <address>'"
    for name, text in contents.items():
        if name.endswith((".md", "METADATA", "PKG-INFO")):
            beside = {os.path.relpath(other, Path(name).parent) for other in contents}
            yield from (f"{name}: {target} leads nowhere" for target in dead_links(url, version, text, beside))


def faults_of_tree(url, version):
    go = go_path(url)
    root = go.removesuffix(GO)
    for path in files():
        if path.suffix not in (".go", ".mod", ".md", ".yml"):
            continue
        text = path.read_text()
        if IMPORT.search(text) or re.search(r"^(module )?tokenbucket(/|$)", text, re.M):
            yield f"{path} names the Go module tokenbucket, which has no address"
        for package in re.findall(rf'"({re.escape(root)}[^"]*)"', text):
            if not Path(package.removeprefix(root)).is_dir():
                yield f"{path}: there is no package {package}"
        if path.suffix == ".mod" and set(re.findall(rf"{re.escape(root)}\S+ v(\S+)", text)) - {version}:
            yield f"{path} requires another version than {version}"
        if path.suffix == ".mod" and GO in str(path) and f"module {root}{path.parent}\n" not in text:
            yield f"{path} is not the module of its folder"
        for page, anchor in re.findall(rf'runbook: "{re.escape(url)}/blob/main/(.*)#([^"]*)"', text):
            if anchor not in anchors(Path(page).read_text()):
                yield f"{path}: {page}#{anchor} leads nowhere"
        if 'runbook: "docs/' in text:
            yield f"{path}: a runbook is no address"


def unreleased():
    pages = (path for path in files() if path.suffix == ".md")
    lines = ((path, number, line) for path in pages for number, line in enumerate(path.read_text().splitlines(), 1))
    if said := [f"{path}:{number}: {line.strip()}" for path, number, line in lines if UNRELEASED.search(line)]:
        sys.exit("\n".join(said))


def check(url, version, paths):
    faults = []
    for path in map(Path, paths):
        found = faults_of_tree(url, version) if path.samefile(".") else faults_of_file(url, version, path)
        faults += (fault if path.samefile(".") else f"{path.name}: {fault}" for fault in found)
    if faults:
        sys.exit("\n".join(["error: links or paths lead nowhere", *faults]))


match sys.argv[1:]:
    case ["write", url]:
        write(url.rstrip("/").removesuffix(".git"))
    case ["unreleased"]:
        unreleased()
    case ["links", url, version, path]:
        sys.stdout.write(links(url, version, path))
    case ["check", url, version, *paths]:
        check(url, version, paths)
    case _:
        sys.exit(__doc__)
