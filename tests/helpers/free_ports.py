"""Ports for the servers of tests, none of which two processes of one test run are given."""

from __future__ import annotations

import os

from saga_workers.devstack.ports import choose_ports

# A server that starts slowly binds its port seconds after it is chosen; until then the port is free for everybody.
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_OWN = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
_unusable = {port for port in range(2**16) if port % _PROCESSES != _OWN}
"""Those of the other processes of xdist, and those that this one has given away."""


def free_ports(*names: str) -> dict[str, int]:
    """A free port for each name, which nobody else in this test run is given."""
    ports = choose_ports(dict.fromkeys(names), {}, _unusable)
    _unusable.update(ports.values())
    return ports


def free_port() -> int:
    return free_ports("port")["port"]
