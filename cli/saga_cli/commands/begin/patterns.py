"""The examples of the patterns, as projects: those of a clone, or the ones that are packed into the wheel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sagas.errors import UsageError

_OTHER_PATTERN = re.compile(r"\[([^]]+)\]\(\.\./[^)]+\)")
"""A link to another pattern's page, which a project of its own does not have."""

_TEST_PROGRAM = "play.py"
"""A program that `make patterns` of a clone runs."""


def pattern_files(name: str) -> dict[str, str]:
    """The texts of a pattern's project by path. Raises UsageError: there is no such pattern."""
    patterns = {folder.name: folder for folder in sorted(_folder().iterdir()) if (folder / "saga.toml").exists()}
    if name not in patterns:
        raise UsageError(f"there is no pattern {name!r}", help=f"one of {', '.join(patterns)}")
    files = {
        file.name: file.read_text(encoding="utf-8")
        for file in sorted(patterns[name].iterdir())
        if file.is_file() and file.name != _TEST_PROGRAM
    }
    files["README.md"] = _OTHER_PATTERN.sub(r"\1", files["README.md"])
    return files


def commands_to_try(readme: str) -> Sequence[str]:
    """The commands below the last heading of a pattern's README."""
    return readme.rpartition("```console\n")[2].removesuffix("```\n").splitlines()


def _folder() -> Path:
    checkout = Path(__file__).parents[4] / "definitions" / "patterns"
    return checkout if checkout.exists() else Path(__file__).parents[2] / "templates" / "patterns"
