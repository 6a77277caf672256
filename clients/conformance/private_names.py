"""Fails where a package reaches into a driver: by a private name, unsafe code, or sockets of its own.

`make lint` runs it for LANGUAGES. A private name is one that begins with an underscore and that the package
does not define itself.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CLIENTS = Path(__file__).resolve().parents[1]
# What the package of each language is made of, and what it may not contain.
SOURCES = {
    "python": ("python/src", "*.py"),
    "node": ("node/src", "*.ts"),
    "go": ("go", "*.go"),
    "rust": ("rust/src", "*.rs"),
}
FORBIDDEN = {
    "python": r"^\s*(?:import|from) (?:socket|ssl|select|selectors|ctypes)\b",
    "node": r"^import .* from ['\"](?:node:)?(?:net|tls)['\"]|\bas any\)?\._?\w|\[['\"]_|(?<!this)\._\w",
    "go": r'^\s*(?:_ )?"(?:unsafe|reflect)"|go:linkname',
    "rust": r"\bunsafe\b(?!_code)|TcpStream",
}
# Where a driver leaves no other way, with the reason. At most three in all.
EXCEPTIONS: dict[str, str] = {
    "python/src/tokenbucket/transport/driver.py": "`socket`: the number of an option, which the driver sets",
    "node/src/transport/node-redis.ts": "`_execute`: other ways lend clients without options or duplicates",
}
# Public, as the standard library spells it.
PUBLIC = {"_replace"}


def main() -> None:
    assert len(EXCEPTIONS) <= 3, "at most three exceptions in all"
    languages = os.environ.get("LANGUAGES", "python,node,go,rust").split(",")
    found = [one for language in languages for one in faults(language)]
    found = [one for one in found if not any(one.startswith(place) for place in EXCEPTIONS)]
    if found:
        sys.exit("\n".join(found))


def faults(language: str) -> Iterator[str]:
    folder, pattern = SOURCES[language]
    files = [path for path in sorted((CLIENTS / folder).rglob(pattern)) if not is_test(path)]
    for path in files:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(FORBIDDEN[language], line):
                yield f"{path.relative_to(CLIENTS)}:{number}: {line.strip()}"
    if language == "python":
        yield from private_names({path: ast.parse(path.read_text()) for path in files})


def is_test(path: Path) -> bool:
    return path.name.endswith(("_test.go", ".test.ts")) or bool({"node_modules", "target"} & set(path.parts))


def private_names(trees: dict[Path, ast.Module]) -> Iterator[str]:
    own = {name for tree in trees.values() for node in ast.walk(tree) for name in defined(node)}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for name in used(node):
                if name.startswith("_") and not name.startswith("__") and name not in own | PUBLIC:
                    yield f"{path.relative_to(CLIENTS)}:{node.lineno}: {name}"  # type: ignore[attr-defined]


def defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
            yield name


def used(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(attr=name):
            yield name
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(value=str(name)), *_]
        ):
            yield name


if __name__ == "__main__":
    main()
