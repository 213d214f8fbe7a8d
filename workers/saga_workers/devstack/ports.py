"""Free TCP ports on the loopback address."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Mapping

HOST = "127.0.0.1"

# Below the ephemeral range, so that no outgoing connection takes a port between the choice and the server's start.
_RANGE = range(18_000, 32_000)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def is_open(host: str, port: int) -> bool:
    """True if something accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def choose_ports(
    preferred: Mapping[str, int | None], previous: Mapping[str, int], taken: Iterable[int]
) -> dict[str, int]:
    """One free port for each name: the previous one, else the preferred one, else any."""
    used = set(taken)
    chosen: dict[str, int] = {}
    for name, wanted in preferred.items():
        candidates = [port for port in (previous.get(name), wanted) if port]
        candidates += random.sample(_RANGE, 200)
        chosen[name] = next(port for port in candidates if port not in used and is_free(port))
        used.add(chosen[name])
    return chosen
