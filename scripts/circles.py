#!/usr/bin/env python3
"""Fails where source files of a folder import each other in a circle: `circles.py FOLDER...`, in Rust, Python or
TypeScript.

A re-export is no import: a name that `mod.rs` passes on belongs to the file that defines it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

IMPORT = re.compile(r'^import [^;]*? from "(\.[^"]+)\.js";', re.MULTILINE)
USE = re.compile(r"^\s*(pub(?:\([^)]*\))? )?use ([^;]+);", re.MULTILINE)
Module = tuple[str, ...]


def paths_of(tree: str) -> list[str]:
    """Returns the paths of a use tree: `a::{b, c::d}` is `a::b` and `a::c::d`."""
    head, brace, rest = tree.partition("{")
    if not brace:
        return [tree.split(" as ")[0].strip()]
    depth, parts = 0, [""]
    for letter in rest.rsplit("}", 1)[0]:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [head.strip() + path for part in parts if part.strip() for path in paths_of(part.strip())]


class Crate:
    """The files of a crate by their modules, and what they import."""

    def __init__(self, root: Path) -> None:
        self.modules = {self._module(file.relative_to(root)): file for file in root.rglob("*.rs")}
        self.uses = {module: list(self._uses(module)) for module in self.modules}

    @staticmethod
    def _module(file: Path) -> Module:
        names = file.with_suffix("").parts
        return names[:-1] if names[-1] in ("mod", "lib", "main") else names

    def _uses(self, module: Module):
        for is_public, tree in USE.findall(self.modules[module].read_text("utf-8")):
            for path in paths_of(re.sub(r"\s+", " ", tree)):
                if names := self._absolute(module, path.split("::")):
                    yield bool(is_public), names

    def _absolute(self, module: Module, names: list[str]) -> Module | None:
        if names[0] == "crate":
            return tuple(names[1:])
        ups = names.count("super")
        if names[0] in ("self", "super"):
            return (*module[: len(module) - ups], *names[max(ups, 1) :])
        return (*module, *names) if (*module, names[0]) in self.modules else None

    @cache
    def file_of(self, path: Module) -> Module:
        """Returns the module whose file defines what a path names."""
        module = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in self.modules)
        name = path[len(module) : len(module) + 1]
        for is_public, target in self.uses[module]:
            if is_public and name and target[-1:] == name and target != path:
                return self.file_of((*target, *path[len(module) + 1 :]))
        return module

    def imports(self) -> dict[str, set[str]]:
        return {
            "::".join(module) or "crate": {
                "::".join(self.file_of(path)) or "crate" for is_public, path in uses if not is_public
            }
            for module, uses in self.uses.items()
        }


def imports_of(root: Path) -> dict[str, set[str]]:
    """Returns what each file imports, types included."""
    if modules := list(root.rglob("*.ts")):
        return {
            str(file.resolve().with_suffix("")): {
                str((file.parent / path).resolve()) for path in IMPORT.findall(file.read_text("utf-8"))
            }
            for file in modules
        }
    if modules := list(root.rglob("*.py")):
        return {str(file.with_suffix("")): set(python_imports(file)) for file in modules}
    return Crate(root).imports()


def python_imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            of = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for name in node.names:
                inner = of / name.name
                is_module = inner.with_suffix(".py").exists()
                yield str(inner if is_module else of / "__init__" if of.is_dir() else of)


def main(folders: list[str]) -> int:
    status = 0
    for folder in folders:
        imports = {file: others - {file} for file, others in imports_of(Path(folder)).items()}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            names = " <- ".join(error.args[1])
            print(f"{folder}: files import each other in a circle: {names}", file=sys.stderr)
            status = 1
    return status


sys.exit(main(sys.argv[1:]))
