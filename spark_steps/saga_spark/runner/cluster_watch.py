"""Watches what executes the jobs of a runner: a standalone cluster, or a Spark Connect server.

Spark itself waits, without an error. A driver that has lost its master does not connect again by itself, because a
master can return with its state and contacts the driver then; one that returns without its state does not know the
application. A Connect client repeats each call for ten minutes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from sagas.errors import Unavailable

PREFIX = "spark://"
CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to one master, or to a Connect server."""

LOST_AFTER = 30.0
"""Seconds of absence after which a cluster or a server is lost. Spark replaces executors in a few seconds."""


class AbsenceTimer:
    """Measures how long something has been absent. ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def is_lost(self, *, present: bool) -> bool:
        """Return whether the cluster, or the server, was absent at every call of the last ``LOST_AFTER`` seconds."""
        if present:
            self._since = None
            return False
        if self._since is None:
            self._since = self._clock()
        return self._clock() - self._since >= LOST_AFTER


def master_addresses(url: str) -> list[tuple[str, int]]:
    """The hosts and ports of ``spark://one:7077,two:7077``; empty for another kind of master, or no such address."""
    if not url.startswith(PREFIX):
        return []
    pairs = [text.rpartition(":") for text in url.removeprefix(PREFIX).split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in pairs if host and port.isascii() and port.isdigit()]


def require_master(url: str) -> None:
    """Raises Unavailable if none of the masters accepts connections: Spark would try for a minute."""
    reasons = []
    for host, port in master_addresses(url):
        try:
            socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
        except (OSError, OverflowError) as error:  # a port above 65535
            reasons.append(f"{host}:{port}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    if reasons:
        raise Unavailable(f"no master of Spark accepts connections ({'; '.join(reasons)}); start it, or check `master`")


def is_connected(pid: int, ports: set[int]) -> bool:
    """Return whether the process has a connection to one of these remote ports; True if that cannot be determined."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return True
    return any(
        connection.raddr and connection.raddr.port in ports and connection.status == psutil.CONN_ESTABLISHED
        for connection in connections
    )


class ConnectServer:
    """The server at an address as PySpark has it. Its channel has the same security and proxies as PySpark's own."""

    def __init__(self, remote: str) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        self._channel: Any = None
        self.address = remote.partition("/;")[0]  # a token may follow

    def answers(self) -> bool:
        """Return whether it accepts a connection within ``CONNECT_TIMEOUT`` seconds.

        Raises ImportError (PySparkImportError) if gRPC is not installed, PySparkException for an invalid address.
        """
        with self._lock:
            if self._channel is None:
                from pyspark.sql.connect.client import DefaultChannelBuilder

                self._channel = DefaultChannelBuilder(self._remote).toChannel()
        import grpc

        try:
            grpc.channel_ready_future(self._channel).result(timeout=CONNECT_TIMEOUT)
        except grpc.FutureTimeoutError:
            return False
        return True

    def require(self) -> None:
        """Raises Unavailable if it does not answer; errors of :meth:`answers`."""
        if not self.answers():
            raise Unavailable(f"no Spark Connect server answers at {self.address}; start it, or check `remote`")
