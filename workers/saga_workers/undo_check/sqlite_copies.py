"""Copies of a SQLite database: files."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from sagas.errors import SagaError, UsageError
from sagas.text.shell import saga_command


class SqliteCopies:
    """Copies a file, also while others write to it. Raises SagaError if it cannot be read."""

    def __init__(self, name: str, url: URL, folder: Path) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise UsageError(f"the database of the connection {name} is not a file, so it cannot be copied")
        if not Path(url.database).exists():
            raise SagaError(f"there is no file {url.database} of the connection {name}", help=saga_command("setup"))
        self._folder = folder
        self._url = url
        file = folder / f"{uuid.uuid4().hex}.db"
        try:
            original = sqlite3.connect(f"file:{quote(str(Path(url.database).resolve()))}?mode=ro", uri=True)
            with closing(original), closing(sqlite3.connect(file)) as copy:
                original.backup(copy)
        except sqlite3.Error as error:
            raise SagaError(f"the database of the connection {name} cannot be copied: {error}") from error
        self.base = url.set(database=str(file))
        self.of_other_runs: Sequence[str] = ()

    @asynccontextmanager
    async def copy(self) -> AsyncIterator[URL]:
        file = self._folder / f"{uuid.uuid4().hex}.db"
        shutil.copyfile(str(self.base.database), file)
        try:
            yield self._url.set(database=str(file))
        finally:
            for each in self._folder.glob(f"{file.name}*"):
                each.unlink(missing_ok=True)

    def keep_inside(self, engine: AsyncEngine) -> None:
        """Nothing to do: a statement works in the file of its connection."""
