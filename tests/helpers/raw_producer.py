"""Writes records that no Python client would write: names of headers that are not UTF-8, through librdkafka itself."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

_TOPIC, _VALUE, _FLAGS, _HEADERS = 1, 4, 7, 10
_COPY = 2
_PRODUCER = 0


class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint64 * 8)]


def produce_raw(address: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Write one record and wait until the broker has it."""
    library = _library()
    error = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", address.encode(), error, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, settings, error, 512))
    written = ctypes.c_void_p(library.rd_kafka_headers_new(len(headers)))
    for name, text in headers:
        library.rd_kafka_header_add(
            written, name, ctypes.c_ssize_t(len(name)), text, ctypes.c_ssize_t(len(text))
        )  # fmt: skip
    name, content = ctypes.create_string_buffer(topic.encode()), ctypes.create_string_buffer(value)
    arguments = (_Argument * 4)()
    parts = [
        (_TOPIC, ctypes.addressof(name), 0),
        (_VALUE, ctypes.addressof(content), len(value)),
        (_FLAGS, _COPY, 0),
        (_HEADERS, written.value, 0),
    ]
    for argument, (kind, first, second) in zip(arguments, parts, strict=True):
        argument.kind, argument.value[0], argument.value[1] = kind, first or 0, second
    assert not library.rd_kafka_produceva(producer, arguments, ctypes.c_size_t(len(parts)))
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


def _library() -> Any:
    assert confluent_kafka.__file__ is not None
    libraries = sorted((Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*"))
    if not libraries:
        pytest.skip("the client library has no librdkafka of its own")
    library = ctypes.CDLL(str(libraries[0]))
    for function in ("conf_new", "new", "headers_new", "produceva"):
        getattr(library, f"rd_kafka_{function}").restype = ctypes.c_void_p
    return library
