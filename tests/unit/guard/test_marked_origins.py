"""A stored origin says with which ledger its worker has recorded it, whatever becomes of the rest."""

from __future__ import annotations

import pytest

from saga_activities.guard.stored_values import StoredValues
from saga_activities.value_cipher import ValueCipher
from sagas.protocol.origin import (
    Origin,
    decode_origin,
    encode_origin,
    forgotten_origin,
    is_of_another_saga,
    reference_to,
    with_ledger,
)
from sagas.settings.codec import CodecKey

ORIGIN = Origin("orders", "sha256:1", "ab" * 32, 1.0, input={"a": "}"}, has_input=True, variables={"v": 1})
PLACE = ("saga_guard", "order-7", "a", 1, "do", "origin")


@pytest.mark.parametrize("origin", [ORIGIN, reference_to(ORIGIN), reference_to(ORIGIN, is_short=True)])
def test_the_mark_is_read_and_nothing_else_has_changed(origin: Origin) -> None:
    text = encode_origin(origin)
    marked = with_ledger(text, "1a2b3c4d")
    assert marked is not None
    assert decode_origin(marked).ledger == "1a2b3c4d"
    assert encode_origin(decode_origin(marked)).replace(',"ledger":"1a2b3c4d"', "") == text
    assert not is_of_another_saga(text, marked)


def test_without_a_ledger_or_an_origin_there_is_no_mark() -> None:
    assert with_ledger(encode_origin(ORIGIN), "") == encode_origin(ORIGIN)
    assert with_ledger(None, "1a2b3c4d") is None
    assert decode_origin(encode_origin(ORIGIN)).ledger == ""


def test_it_stays_when_the_values_are_encrypted_or_forgotten() -> None:
    marked = with_ledger(encode_origin(ORIGIN), "1a2b3c4d")
    assert marked is not None
    stored = StoredValues(ValueCipher([CodecKey("0123456789ab", b"k" * 32)])).encrypt_origin(PLACE, marked)
    assert stored is not None
    assert (decode_origin(stored).ledger, "}" in str(decode_origin(stored).input)) == ("1a2b3c4d", False)
    assert decode_origin(forgotten_origin(stored) or "").ledger == "1a2b3c4d"
