"""Bounds the signals of programs to one run: they fill its history, and Temporal terminates one that is full.

The counts are those of this process; what other processes, and other clients, have sent is seen in the history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from saga_workers.temporal.temporal_runs import RunDescription
from sagas.errors import RefusedError

MAX_BYTES = 20 * 1024 * 1024
"""Bytes of all signals that one process sends to a run."""

MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS = 25 * 1024 * 1024, 40_000
"""Half of what Temporal accepts, with the bytes above, and events; what remains is for the saga to end."""

_RUNS = 50_000
"""Runs whose counts are kept, those that were signalled last."""


class SignalRefused(RefusedError):
    """No saga takes this signal, now or later."""


@dataclass(slots=True)
class _Sent:
    signals: int = 0
    bytes: int = 0


class SignalLimit:
    """``most``: signals for one run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: OrderedDict[str, _Sent] = OrderedDict()

    @contextmanager
    def admit(self, described: RunDescription, size: int) -> Iterator[None]:
        """Count a signal of ``size`` bytes for the run, unless the body, which sends it, raises: then it comes again.

        Raises SignalRefused if the run accepts no more.
        """
        run, history = described.run, described.raw.workflow_execution_info
        if history.history_size_bytes >= MAX_HISTORY_BYTES or history.history_length >= MAX_HISTORY_EVENTS:
            raise SignalRefused(
                f"{run.id} accepts no more signals: its history has {history.history_size_bytes:,} bytes and "
                f"{history.history_length:,} events, and Temporal terminates a run with too many"
            )
        sent = self._sent.setdefault(run.run_id, _Sent())
        self._sent.move_to_end(run.run_id)
        if sent.signals >= self._most or sent.bytes + size > MAX_BYTES:
            raise SignalRefused(
                f"{run.id} accepts no more signals: it was sent {sent.signals:,} with {sent.bytes:,} bytes, and may be "
                f"sent {self._most:,} (kafka.max_signals) with {MAX_BYTES:,} bytes"
            )
        sent.signals += 1
        sent.bytes += size
        if len(self._sent) > _RUNS:
            self._sent.popitem(last=False)
        try:
            yield
        except BaseException:
            sent.signals -= 1
            sent.bytes -= size
            raise
