"""The temporary folder of the copies that are files; what a killed process has left of it is removed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saga_workers.runtime.process_identity import owner_is_dead, process_identity
from sagas.errors import UsageError
from sagas.settings.trust import require_own
from sagas.text.bounded_files import read_bounded

_PREFIX = "saga-verify-undo-"
_OWNER_FILE = "owner"


@contextmanager
def copies_folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        (Path(folder) / _OWNER_FILE).write_text(process_identity(), encoding="utf-8")
        yield Path(folder)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of this user whose process has ended on this machine."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            require_own(folder / _OWNER_FILE)
            owner = read_bounded(folder / _OWNER_FILE).decode()
        except (OSError, ValueError, UsageError):
            continue
        if owner_is_dead(owner):
            shutil.rmtree(folder, ignore_errors=True)
