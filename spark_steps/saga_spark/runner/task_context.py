"""One run of a task in the runner: its Spark session, progress and cancellation."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from saga_spark.runner.runner_protocol import TaskCancelled
from saga_spark.runner.spark_session import SparkSessions
from saga_spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANCEL_INTERVAL = 0.2
"""Seconds between two attempts to cancel: a job may start its next Spark job right after the first was cancelled."""


class TaskContext:
    """One run of a task. ``spark`` is a separate session (with its own temporary views and settings) in the shared
    context; jobs started from this thread carry ``tag``."""

    def __init__(
        self,
        number: int,
        tag: str,
        settings: SparkSettings,
        sessions: SparkSessions,
        send: Callable[[dict[str, Any]], None],
    ) -> None:
        self.number = number
        self.tag = tag
        self.settings = settings
        self._sessions = sessions
        self._send = send
        self._session: SparkSession | None = None
        self._cancel_callbacks: list[Callable[[], None]] = []
        self._thread: int | None = None
        self._ended = threading.Event()
        self.cancelled = False

    @property
    def spark(self) -> SparkSession:
        """Opened on first use. Raises Unequipped (no Java or PySpark), Unavailable (Spark did not start)."""
        if self._session is None:
            self.progress({"starting": "Spark"})  # the first session of a runner takes up to minutes
            self._session = self._sessions.open(self.tag)
            self.progress({"starting": None})
            self.raise_if_cancelled()
        return self._session

    @property
    def open_session(self) -> SparkSession | None:
        """The session if one was opened."""
        return self._session

    @property
    def spark_ui(self) -> str | None:
        """The address of Spark's web UI."""
        return self._sessions.spark_ui

    def progress(self, values: Mapping[str, Any]) -> None:
        """Report progress to the worker."""
        self._send({"progress": self.number, "values": dict(values)})

    def raise_if_cancelled(self) -> None:
        """Raises TaskCancelled if the run was cancelled."""
        if self.cancelled:
            raise TaskCancelled

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on cancellation, to stop what Spark does not manage (a program, a query)."""
        self._cancel_callbacks.append(callback)

    # ── for the runner process ──────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Must be called in the run's own thread."""
        self._thread = threading.get_ident()

    def end(self) -> None:
        self._ended.set()
        if self._session is not None:
            self._sessions.release(self._session, self.tag)

    def cancel(self) -> None:
        """Stop the run's Spark jobs, its programs and its Python code, repeatedly until it has ended.

        Python code that is blocked in a system call cannot be stopped; the worker then kills the runner.
        """
        self.cancelled = True
        for stop in self._cancel_callbacks:
            stop()
        self._interrupt_thread()
        while not self._ended.wait(CANCEL_INTERVAL):
            if self._session is not None:
                self._sessions.cancel(self._session, self.tag)

    def _interrupt_thread(self) -> None:
        """Raise TaskCancelled in the run's thread, at its next Python bytecode."""
        if self._thread is not None and not self._ended.is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(TaskCancelled))
