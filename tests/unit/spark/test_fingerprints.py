"""Fingerprints add up, whatever the parts; duplicates and counts are seen."""

from __future__ import annotations

import random

from saga_spark.row_fingerprint import Fingerprint, combine, read_fingerprint


def test_fingerprints_of_parts_add_up_in_any_order() -> None:
    words = [(random.Random(seed).getrandbits(64), random.Random(-seed).getrandbits(64)) for seed in range(1, 200)]
    parts = [Fingerprint(1, *pair) for pair in words]
    whole = combine(parts)
    random.Random(7).shuffle(parts)
    assert combine([combine(parts[:50]), combine(parts[50:])]) == whole
    assert whole.rows == 199
    assert whole.first == sum(low for low, _ in words) % 2**64


def test_the_halves_of_a_word_are_signed_sums() -> None:
    values = {"rows": 2, "low1": -1, "high1": 3, "low2": 5, "high2": -2}
    assert read_fingerprint(values) == Fingerprint(2, 3 * 2**32 - 1, 2**64 - 2 * 2**32 + 5)
    wrapped = {"rows": 2, "word1": 3 * 2**32 - 1, "word2": 5 - 2 * 2**32}
    assert read_fingerprint(wrapped) == read_fingerprint(values)
    prefixed = {f"x_{name}": value for name, value in values.items()}
    assert read_fingerprint(prefixed, "x_") == read_fingerprint(values)


def test_an_empty_set_has_null_sums() -> None:
    assert read_fingerprint(dict.fromkeys(("rows", "low1", "high1", "low2", "high2"))) == Fingerprint()


def test_the_text_form_has_128_bits_and_includes_the_count() -> None:
    first, second = Fingerprint(1, 0, 0), Fingerprint(2, 0, 0)
    assert len(first.hex) == 32
    assert first.hex != second.hex
