"""Reads the console blocks of a page: commands behind `$ `, and what they print."""

from __future__ import annotations

import re
from dataclasses import dataclass

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
HERE = re.compile(r"<<'(\w+)'")
CHANGING = re.compile(r"\d+(?:[.,]\d+)?")


@dataclass(frozen=True)
class Command:
    """One command and the lines it must print, in this order; `…` stands for anything within a line."""

    text: str
    prints: tuple[str, ...]


def commands(page: str) -> list[Command]:
    found: list[Command] = []
    for block in BLOCK.findall(page):
        lines = iter(block.splitlines())
        text: list[str] = []
        prints: list[str] = []
        for line in lines:
            if line.startswith("$ "):
                if text:
                    found.append(Command("\n".join(text), tuple(prints)))
                text, prints = [line[2:]], []
                here = HERE.search(line)
                while here and text[-1] != here[1]:
                    text.append(next(lines))
            else:
                prints.append(line)
        if text:
            found.append(Command("\n".join(text), tuple(prints)))
    return found


def missing(expected: tuple[str, ...], output: str) -> str | None:
    """The first expected line that the output does not have (after the ones before it); None: all are there."""
    lines = iter(_plain(line) for line in output.splitlines())
    for line in expected:
        wanted = re.compile(".*".join(re.escape(part.strip()) for part in _plain(line).split("…")))
        if not any(wanted.search(found) for found in lines):
            return line
    return None


def _plain(line: str) -> str:
    return CHANGING.sub("0", " ".join(line.split()))
