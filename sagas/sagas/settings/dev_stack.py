"""What `saga dev up` has written about the services of a project, without those that have ended.

After a crash or a reboot the file with their addresses is still there, and another program may listen at one of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sagas.process_id import ProcessId
from sagas.settings.toml_file import read_toml

DEV_FOLDER = Path(".saga") / "dev"
DEV_FILE = Path(".saga") / "dev.toml"

_SERVICE = {"temporal": "temporal", "connections": "postgres", "catalogs": "postgres", "kafka": "kafka"}
"""Which service each table of the file tells of."""


def read_dev_file(root: Path) -> dict[str, Any]:
    """The tables of ``.saga/dev.toml`` whose services run; none in the copy of a project, whose original they serve.

    Raises:
        UsageError: the file cannot be read.
    """
    file = root / DEV_FILE
    if not file.is_file() or _is_copy(root):
        return {}
    return {name: table for name, table in read_toml(file).items() if not _has_ended(root, _SERVICE.get(name, name))}


def has_dev_stack(root: Path) -> bool:
    """True when `saga dev up` has been called for this folder, whether the stack runs or not."""
    return (root / DEV_FOLDER).is_dir()


def _is_copy(root: Path) -> bool:
    """A folder whose written path is another one that is still there."""
    try:
        _, _, path = (root / DEV_FOLDER / "ID").read_text(encoding="utf-8").strip().partition(" ")
    except FileNotFoundError:
        return False
    return path != str(root) and (Path(path) / DEV_FOLDER / "ID").exists()


def _has_ended(root: Path, service: str) -> bool:
    """False also when its record was lost: then only `saga dev up` can find out."""
    try:
        process = json.loads((root / DEV_FOLDER / f"{service}.json").read_text(encoding="utf-8"))["process"]
    except (OSError, ValueError, KeyError):
        return False
    return not (process and ProcessId(**process).is_alive())
