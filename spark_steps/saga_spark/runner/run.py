"""One run inside the runner process: what a task is given."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from saga_spark.runner.messages import Cancelled
from saga_spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from saga_spark.runner.session import Sessions

RETRY_CANCEL = 0.2
"""Seconds between two attempts to cancel: a job may start its next Spark job right after the first was cancelled."""


class Run:
    """``spark`` is a session of this run alone (its own temporary views and settings) in the shared context; every job
    started from this thread carries ``tag``."""

    def __init__(
        self, number: int, tag: str, settings: SparkSettings, sessions: Sessions, say: Callable[[dict[str, Any]], None]
    ) -> None:
        self.number = number
        self.tag = tag
        self.settings = settings
        self._sessions = sessions
        self._say = say
        self._session: SparkSession | None = None
        self._stops: list[Callable[[], None]] = []
        self._thread: int | None = None
        self._ended = threading.Event()
        self.cancelled = False

    @property
    def spark(self) -> SparkSession:
        """Opened on first use. Raises Unequipped (no Java, no PySpark), Unavailable (Spark did not start)."""
        if self._session is None:
            self._session = self._sessions.open(self.tag)
            self.check()
        return self._session

    @property
    def session(self) -> SparkSession | None:
        """The session if one was opened."""
        return self._session

    @property
    def ui(self) -> str | None:
        """The address of Spark's own web UI."""
        return self._sessions.ui

    def progress(self, values: Mapping[str, Any]) -> None:
        """Tell the worker how far this is."""
        self._say({"progress": self.number, "values": dict(values)})

    def check(self) -> None:
        """Raises Cancelled if the run was cancelled meanwhile."""
        if self.cancelled:
            raise Cancelled

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """``stop`` is called when the run is cancelled: it ends what Spark does not know of (a program, a query)."""
        self._stops.append(stop)

    # ── for the process ─────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Called in the run's own thread."""
        self._thread = threading.get_ident()

    def end(self) -> None:
        self._ended.set()
        if self._session is not None:
            self._sessions.release(self._session, self.tag)

    def cancel(self) -> None:
        """Stop the run's Spark jobs, its programs and its Python code; again and again, until it has ended.

        Python code that sits in a call of the operating system cannot be stopped: then the worker kills the runner.
        """
        self.cancelled = True
        for stop in self._stops:
            stop()
        self._interrupt()
        while not self._ended.wait(RETRY_CANCEL):
            if self._session is not None:
                self._sessions.cancel(self._session, self.tag)

    def _interrupt(self) -> None:
        """Raise Cancelled in the run's thread, at its next step in Python."""
        if self._thread is not None and not self._ended.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Cancelled))
