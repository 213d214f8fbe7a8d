"""States are compressed so that a document counts once, however often and far apart they have it."""

from __future__ import annotations

import random

import pytest

from sagas.protocol.compression import compress, decompress

DOCUMENT = random.Random(7).randbytes(1_500_000)


@pytest.mark.parametrize("data", [b"", b"state " * 1000, DOCUMENT, DOCUMENT * 3])
def test_it_is_restored(data: bytes) -> None:
    assert decompress(compress(data, 1)) == data


def test_what_is_repeated_counts_once() -> None:
    assert len(compress(DOCUMENT * 3, 1)) < 1.02 * len(DOCUMENT)


def test_small_states_are_what_earlier_versions_read() -> None:
    assert compress(b"state " * 1000, 6)[:1] == b"\x78"


@pytest.mark.parametrize("data", [b"none", b"\x78\x9c", b"\xfd7zXZ\x00", compress(DOCUMENT * 2, 1)[:-9]])
def test_what_is_malformed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="the state is malformed"):
        decompress(data)
