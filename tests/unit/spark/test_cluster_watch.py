"""When a cluster counts as lost, and which addresses a master has."""

from __future__ import annotations

import os
import socket

import pytest

from saga_spark.runner.cluster_watch import (
    LOST_AFTER,
    AbsenceTimer,
    is_connected,
    master_addresses,
    require_master,
)
from sagas.errors import Unavailable


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("spark://one:7077", [("one", 7077)]),
        ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("spark://one", []),
        ("spark://", []),
        ("local[2]", []),
        ("yarn", []),
        ("k8s://https://cluster:6443", []),
    ],
)
def test_addresses_of_masters(url: str, addresses: list[tuple[str, int]]) -> None:
    assert master_addresses(url) == addresses


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_absence_of_half_a_minute_is_a_loss() -> None:
    clock = Clock()
    timer = AbsenceTimer(clock)
    assert not timer.is_lost(present=False)
    clock.now += LOST_AFTER - 1
    assert not timer.is_lost(present=False)
    clock.now += 1
    assert timer.is_lost(present=False)


def test_a_return_starts_the_time_again() -> None:
    clock = Clock()
    timer = AbsenceTimer(clock)
    for present in (False, True, False):
        assert not timer.is_lost(present=present)
        clock.now += LOST_AFTER - 1
    assert not timer.is_lost(present=False)
    clock.now += 1
    assert timer.is_lost(present=False)


def test_connections_are_those_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        require_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        assert not is_connected(os.getpid(), {port})
        with socket.create_connection(("127.0.0.1", port)):
            assert is_connected(os.getpid(), {port})
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}: Connection refused\); start it"):
        require_master(f"spark://127.0.0.1:{port}")
    require_master("yarn")
