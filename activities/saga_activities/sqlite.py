"""SQLite's connections: a closed one holds no lock, and a cancelled statement does not go on for long."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine, event

_INSTRUCTIONS = 10_000
"""How many instructions SQLite executes between two checks of the flag: less than a millisecond of work."""


class Connection(sqlite3.Connection):
    """Ends its transaction when it is closed.

    SQLite itself keeps the transaction of a closed connection, and so the write lock, as long as one of its cursors
    is open: after a cancelled statement that would be until the garbage collector finds the cursor.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._interrupted = threading.Event()
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()
        self.execute("PRAGMA journal_mode = WAL").close()  # readers do not block the writer
        self.execute("PRAGMA foreign_keys = ON").close()
        self.set_progress_handler(self._interrupted.is_set, _INSTRUCTIONS)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        cursor = super().cursor(*args, **kwargs)
        self._cursors.add(cursor)
        return cursor

    def interrupt(self) -> None:
        """Stop the running statement, and every later one: a cancelled statement may only be about to start."""
        self._interrupted.set()

    def close(self) -> None:
        for cursor in tuple(self._cursors):
            cursor.close()
        self.set_progress_handler(None, 0)  # nothing interrupts the rollback
        self.rollback()
        super().close()


def stop_abandoned_statements(engine: Engine) -> None:
    """A statement that was cancelled goes on in the connection's thread; closing the connection waits for its end."""
    event.listen(engine, "invalidate", _interrupt)


def _interrupt(connection: Any, *_: Any) -> None:
    with suppress(ValueError):  # it is closed already
        connection.run_async(lambda raw: raw.interrupt())
