"""Connections whose peer is gone: the system ends them, so that no statement waits for its answer any longer.

A firewall that has forgotten a connection, a host that is gone or a cable that is pulled sends no word to the other
end. Without a limit a statement waits for its answer until the timeout of its attempt.
"""

from __future__ import annotations

import socket
from typing import Any

from sqlalchemy import URL, Engine, event

KEEPALIVE_IDLE = 2
"""Seconds of silence after which the system asks the peer whether it is there."""

KEEPALIVE_INTERVAL = 1
KEEPALIVE_COUNT = 3
"""So many questions without an answer end the connection, one every interval."""

UNACKNOWLEDGED = 5
"""Seconds after which sent data that the peer has not acknowledged ends the connection; Linux only."""


def peer_arguments(url: URL) -> dict[str, Any]:
    """The arguments of ``psycopg.connect`` for these limits, without those that the URL has."""
    arguments = {
        "keepalives": 1,
        "keepalives_idle": KEEPALIVE_IDLE,
        "keepalives_interval": KEEPALIVE_INTERVAL,
        "keepalives_count": KEEPALIVE_COUNT,
        "tcp_user_timeout": UNACKNOWLEDGED * 1000,
    }
    return {name: value for name, value in arguments.items() if name not in url.query}


def limit_dead_peers(engine: Engine) -> None:
    """Set these limits on the sockets of the driver of MySQL and MariaDB, which has no arguments for them."""

    def connected(connection: Any, _record: Any) -> None:
        transport = connection.driver_connection._transport
        _limit(transport.get_extra_info("socket"))

    event.listen(engine, "connect", connected)


def _limit(connection: socket.socket) -> None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE),  # its name on macOS
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
