"""When a driver of a standalone cluster gives up, and which addresses a master has."""

from __future__ import annotations

import os
import socket

import pytest

from saga_spark.runner.standalone_master import (
    LOST_AFTER,
    MasterWatch,
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


def test_a_driver_without_master_and_executors_gives_up() -> None:
    clock = Clock()
    watch = MasterWatch("spark://one:7077", clock)
    assert watch.check(executors=0, connected=lambda: False) is None
    clock.now += LOST_AFTER
    lost = watch.check(executors=0, connected=lambda: False)
    assert lost is not None
    assert str(lost) == (
        "the Spark cluster spark://one:7077 is gone: no connection to its master and no executor for 30 s; "
        "start it again"
    )


@pytest.mark.parametrize(("executors", "connected"), [(1, False), (0, True), (1, True)])
def test_a_master_or_an_executor_is_enough(executors: int, connected: bool) -> None:
    clock = Clock()
    watch = MasterWatch("spark://one:7077", clock)
    assert watch.check(executors=0, connected=lambda: False) is None
    clock.now += LOST_AFTER - 1
    assert watch.check(executors=executors, connected=lambda: connected) is None
    clock.now += LOST_AFTER - 1
    assert watch.check(executors=0, connected=lambda: False) is None, "the time starts again"


def test_other_kinds_of_masters_are_not_watched() -> None:
    clock = Clock()
    watch = MasterWatch("yarn", clock)
    for _ in range(3):
        assert watch.check(executors=0, connected=lambda: False) is None
        clock.now += LOST_AFTER


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
