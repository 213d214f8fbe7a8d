"""Reads the console blocks of a page: commands behind `$ `, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
HERE = re.compile(r"<<'(\w+)'")
MARK = "--- this was command "
CHANGING = re.compile(r"\d+(?:[.,]\d+)?")


@dataclass(frozen=True)
class Command:
    """One command and the lines it must print, in this order; `…` stands for anything within a line."""

    text: str
    prints: tuple[str, ...]


def commands(page: str) -> list[Command]:
    collected: list[Command] = []
    for block in BLOCK.findall(page):
        lines = iter(block.splitlines())
        text: list[str] = []
        prints: list[str] = []
        for line in lines:
            if line.startswith("$ "):
                if text:
                    collected.append(Command("\n".join(text), tuple(prints)))
                text, prints = [line[2:]], []
                here = HERE.search(line)
                while here and text[-1] != here[1]:
                    text.append(next(lines))
            else:
                prints.append(line)
        if text:
            collected.append(Command("\n".join(text), tuple(prints)))
    return collected


def missing(expected: tuple[str, ...], output: str) -> str | None:
    """The first expected line that the output does not have (after the ones before it); None: all are there."""
    lines = iter(_plain(line) for line in output.splitlines())
    for line in expected:
        wanted = re.compile(".*".join(re.escape(part.strip()) for part in _plain(line).split("…")))
        if not any(wanted.search(line) for line in lines):
            return line
    return None


def _plain(line: str) -> str:
    return CHANGING.sub("0", " ".join(line.split()))


def environment(*hidden: str, **more: str) -> dict[str, str]:
    """Environment variables of this process except those with a hidden prefix, and ``more``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "SAGA_", *hidden))}
    return {**kept, "COLUMNS": "160", "NO_COLOR": "1", **more}


def run_and_compare(
    steps: Sequence[Command], folder: Path, env: Mapping[str, str], saga: Path, *, timeout: float
) -> None:
    """Run the commands in one shell in an empty folder, and compare what each prints; a stack of `shop` is stopped."""
    script = "\n".join(f"{step.text}\nSAGA_LAST=$?; echo '{MARK}'{number}" for number, step in enumerate(steps))
    script = script.replace('echo "exit code $?"', 'echo "exit code $SAGA_LAST"')
    shell = ["bash", "-c", f"exec 2>&1\n{script}"]
    try:
        done = subprocess.run(shell, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    finally:
        if (folder / "shop").is_dir():
            subprocess.run([saga, "dev", "down"], cwd=folder / "shop", env=env, check=False)
    rest = done.stdout
    for number, step in enumerate(steps):
        output, mark, rest = rest.partition(f"{MARK}{number}\n")
        assert mark, f"$ {step.text}\ndid not end:\n{output}"
        lost = missing(step.prints, output)
        assert lost is None, f"$ {step.text}\nshould print {lost!r}, but printed:\n{output}"
