"""Finds the definition files of a project."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_SKIPPED = {"__pycache__", "node_modules"}


def find_files(paths: Iterable[Path | str]) -> list[Path]:
    """Files as they are; of folders every `*.saga.yaml`, and every other YAML file that has a `saga:` key.

    A path that does not exist is kept, so that reading it gives a diagnostic.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            found[path] = None
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(one for one in folders if one not in _SKIPPED and not one.startswith("."))
            for name in sorted(names):
                if name.endswith((".yaml", ".yml")) and _is_saga(Path(folder) / name):
                    found[Path(folder) / name] = None
    return list(found)


def _is_saga(path: Path) -> bool:
    if path.name.endswith((".saga.yaml", ".saga.yml")):
        return True
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.startswith(("saga:", '"saga":', "'saga':")) for line in lines)
