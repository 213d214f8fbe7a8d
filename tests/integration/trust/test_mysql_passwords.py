"""A server that answers in place of MySQL or MariaDB gets no password in clear."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from saga_activities.connections import open_engine
from saga_activities.mysql_passwords import refused_plugins

PASSWORD = "not-for-strangers"


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


def greeting() -> bytes:
    capabilities = 0x000F_F7DF  # as MariaDB's, without TLS
    low, high = struct.pack("<I", capabilities)[:2], struct.pack("<I", capabilities)[2:]
    return packet(
        0,
        b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 1) + b"12345678\0" + low + b"\x2d\x02\x00" + high
        + bytes([21]) + bytes(10) + b"123456789012\0" + b"mysql_native_password\0",
    )  # fmt: skip


def serve(listener: socket.socket, plugin: bytes, question: bytes, received: list[bytes]) -> None:
    client, _ = listener.accept()
    with client:
        client.settimeout(3)
        client.sendall(greeting())
        client.recv(4096)
        client.sendall(packet(2, b"\xfe" + plugin + b"\0" + question))
        with suppress(TimeoutError):
            received.append(client.recv(4096))


@pytest.mark.sampled(keep=1)
@pytest.mark.parametrize(
    ("plugin", "question"), [(b"mysql_clear_password", b""), (b"dialog", b"\x04Password: ")], ids=["clear", "dialog"]
)
async def test_no_password_is_sent_in_clear(plugin: bytes, question: bytes) -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, plugin, question, received))
        thread.start()
        port = listener.getsockname()[1]
        engine = open_engine("shop", f"mysql+asyncmy://worker:{PASSWORD}@127.0.0.1:{port}/shop", 1)
        with pytest.raises(OperationalError, match="asks for the password in clear"):
            await engine.connect()
        await engine.dispose()
        thread.join()
    assert b"".join(received) == b""


def test_a_connection_with_tls_may_use_these_methods() -> None:
    assert refused_plugins(make_url("mysql+asyncmy://worker@db/shop?ssl_ca=/etc/ca.pem")) == {}
