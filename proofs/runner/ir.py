"""Reads LLVM IR as text: functions, their blocks, and in these one instruction a line."""

import re
from dataclasses import dataclass, field

NAME = r'(?:"[^"]+"|[\w.$\-]+)'
RESULT = re.compile(rf"(%{NAME}) = (.*)")
DEFINE = re.compile(rf"define .*?@({NAME})\(")
LABEL = re.compile(rf"({NAME}):")
CONSTANT = re.compile(rf"(@{NAME}) = [a-z_ ]* constant (.*), align")
TEXT = re.compile(r'c"[^"]*"')
BYTES = re.compile(r'\[(\d+) x i8\] (?:c"([^"]*)"|undef|zeroinitializer)')
ESCAPED = re.compile(rb"\\([0-9A-F]{2})")
CALLEE = re.compile(rf"@({NAME})\(")


class Unreadable(Exception):
    """The IR has a form that the runner does not know."""


@dataclass
class Instruction:
    result: str | None
    opcode: str
    text: str


@dataclass
class Function:
    name: str
    parameters: list[str]
    blocks: dict[str, list[Instruction]] = field(default_factory=dict)

    @property
    def entry(self):
        return next(iter(self.blocks))


def split_arguments(text):
    """Splits at the commas outside of brackets, up to the bracket that closes the list."""
    parts, depth, part = [], 0, ""
    for char in text:
        if char in ")]}" and depth == 0:
            break
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return parts + [part.strip()] if part.strip() else parts


def without_attributes(text):
    """Leaves out metadata and attributes at the end, which say nothing about values."""
    return re.sub(r"(, ![\w.]+ !\d+| #\d+| !\w+ !\d+)+$", "", text)


def instruction(line):
    match = RESULT.match(line)
    result, text = match.groups() if match else (None, line)
    text = re.sub(r"^(tail|notail|musttail) ", "", without_attributes(text))
    return Instruction(result, text.split()[0], text)


def joined(lines):
    """Joins the lines of a switch, which has one a case."""
    lines = iter(lines)
    for line in lines:
        while line.lstrip().startswith("switch") and "]" not in line:
            line += " " + next(lines).strip()
        yield line


def read_functions(path):
    """Returns the functions that a file defines, by name."""
    functions, current, block = {}, None, None
    with open(path, encoding="utf-8") as file:
        for line in joined(file):
            if line.startswith("define"):
                match = DEFINE.match(line)
                name = match.group(1).strip('"')
                parameters = [part.split()[-1] for part in split_arguments(line[match.end() :])]
                current = functions[name] = Function(name, parameters)
                block = None
            elif line.startswith("}"):
                current = None
            elif current and (match := LABEL.match(line)):
                block = current.blocks.setdefault(match.group(1).strip('"'), [])
            elif current and line.strip() and not line.lstrip().startswith(";"):
                if block is None:
                    raise Unreadable(f"{current.name}: an instruction before the first label")
                block.append(instruction(line.strip()))
    return functions


def read_constants(path):
    """Returns the bytes of constants without addresses, by name. What is undefined is 0."""
    constants = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            match = CONSTANT.match(line)
            if match and "ptr" not in TEXT.sub("", match.group(2)):
                name, parts = match.groups()
                constants[name] = b"".join(
                    bytes_of(text) if text else bytes(int(size)) for size, text in BYTES.findall(parts)
                )
    return constants


def bytes_of(text):
    return ESCAPED.sub(lambda match: bytes([int(match.group(1), 16)]), text.encode())
