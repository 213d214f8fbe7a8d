"""The folder of one reconciliation, with its extracts and what does not fit into memory."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sagas.settings.private_files import make_private_folder

_LOCK = "lock"


@asynccontextmanager
async def open_work_folder(parent: Path) -> AsyncIterator[Path]:
    """A private folder that is removed at the end, and with it those that killed reconciliations have left."""
    make_private_folder(parent)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until this process ends, however it ends
            await asyncio.to_thread(_remove_left_folders, parent)
            yield folder
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _remove_left_folders(parent: Path) -> None:
    """Remove the folders whose process has ended."""
    for lock_file in parent.glob(f"*/{_LOCK}"):
        try:
            with lock_file.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_file.parent, ignore_errors=True)
        except OSError:
            continue  # it is in use, or was removed meanwhile
