"""Lets the threads of Temporal's core leave Python before the interpreter ends.

They deliver the answers of the server by a call into Python. One that has to wait for the interpreter there, on a busy
machine, while this winds down, aborts the process (temporalio/sdk-python#300).
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time

_QUIET_TIME = 0.02
"""Seconds without a native thread in Python. One that waits for the interpreter gets it meanwhile."""

_LONGEST_WAIT = 5.0
"""Seconds; a thread that another library has started may never return."""


@functools.cache
def await_native_threads_at_exit() -> None:
    """Wait at the end of the process until no native thread is in Python."""
    atexit.register(_await_native_threads)


def _await_native_threads() -> None:
    began = quiet_since = time.monotonic()
    while (now := time.monotonic()) - quiet_since < _QUIET_TIME and now - began < _LONGEST_WAIT:
        time.sleep(0.001)
        if _native_threads():
            quiet_since = time.monotonic()


def _native_threads() -> set[int]:
    """The threads that execute Python, and that Python has not started."""
    # A native thread that asks for its Thread object, as logging does, gets one of this class.
    dummy = threading._DummyThread  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ours = {thread.ident for thread in threading.enumerate() if not isinstance(thread, dummy)}
    return sys._current_frames().keys() - ours  # pyright: ignore[reportPrivateUsage]
