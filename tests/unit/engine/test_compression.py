"""States are compressed so that a document counts once, however often and far apart they have it."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sagas.protocol.compression import _fold, _unfold, compress, decompress
from tests.helpers.sampling import examples

DOCUMENT = random.Random(7).randbytes(1_500_000)


@pytest.mark.parametrize("data", [b"", b"state " * 1000, DOCUMENT, DOCUMENT * 3])
def test_it_is_restored(data: bytes) -> None:
    assert decompress(compress(data, 1)) == data


@pytest.mark.parametrize("size", [1, 255, 256, 511, 512, 4095, 4096, 16_383, 16_384, 32_767, 32_768, 40_000])
def test_a_window_of_the_size_of_the_data_costs_no_bytes(size: int) -> None:
    data = (DOCUMENT[:50].hex().encode() * (size // 100 + 1))[:size]
    compressed = compress(data, 6)
    assert decompress(compressed) == data
    assert len(compressed) <= len(zlib.compress(data, 6))


def test_what_is_repeated_counts_once() -> None:
    assert len(compress(DOCUMENT * 3, 1)) < 1.02 * len(DOCUMENT)


def test_small_states_are_plain_zlib() -> None:
    assert zlib.decompress(compress(b"state " * 1000, 6)) == b"state " * 1000


NOWHERE = b"saga-folded\n" + zlib.compress(b"[[-1, 2], [7, 2]]\nab")
BOMB = b"saga-folded\n" + zlib.compress(b"[[-1, 2], " + b", ".join([b"[0, 900000000]"] * 9) + b"]\nab")
NO_PARTS = b"saga-folded\n" + zlib.compress(b'{"a": 1}\nab')


@pytest.mark.parametrize("data", [b"none", b"\x78\x9c", compress(DOCUMENT * 2, 1)[:-9], NOWHERE, BOMB, NO_PARTS])
def test_what_is_malformed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="the state is malformed"):
        decompress(data)


@examples(60, 5_000)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300_000)), max_size=12))
def test_any_mixture_is_restored(pieces: list[tuple[int, int]]) -> None:
    """Repetitions that overlap, follow each other, or begin in the middle of others."""
    sources = (DOCUMENT, DOCUMENT[70_000:], DOCUMENT[700_000:], b"a" * 300_000)
    data = b"".join(sources[source][:length] for source, length in pieces)
    parts, rest = _fold(data)
    assert _unfold(parts, rest) == data
