"""The master of a standalone cluster as a driver sees it: whether it can be reached, and whether it was lost.

A driver that has lost its master does not connect again by itself, because a master can return with its state and
contacts the driver then. One that returns without its state does not know the application: the job waits for executors
without a limit and without an error. So a driver without a master gives up when its last executor is gone, too.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import psutil

from saga_spark.job_errors import RunnerLost
from sagas.errors import Unavailable

PREFIX = "spark://"
CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to one master."""

LOST_AFTER = 30.0
"""Seconds without master and executors after which the cluster is lost; Spark replaces executors in a few."""


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
    """Whether the process has a connection to one of these remote ports; True if that cannot be determined."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return True
    return any(
        connection.raddr and connection.raddr.port in ports and connection.status == psutil.CONN_ESTABLISHED
        for connection in connections
    )


class MasterWatch:
    """Measures how long a driver has been without master and executors. ``clock`` is in seconds."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._since: float | None = None
        self.ports = {port for _, port in master_addresses(url)}

    def check(self, *, executors: int, connected: Callable[[], bool]) -> RunnerLost | None:
        """The error to report if the cluster is lost. ``connected`` is asked only if there is no executor."""
        if not self.ports or executors or connected():
            self._since = None
            return None
        if self._since is None:
            self._since = self._clock()
        if self._clock() - self._since < LOST_AFTER:
            return None
        return RunnerLost(
            f"the Spark cluster {self._url} is gone: no connection to its master and no executor for "
            f"{LOST_AFTER:.0f} s; start it again"
        )
