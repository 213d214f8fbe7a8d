"""Every value comes back from each store that `[codec]` may encrypt, also one that looks like an encrypted one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from saga_activities.encrypted_passages import decrypt_passages
from saga_activities.guard import result_codec
from saga_activities.guard.stored_values import PLAIN, StoredValues
from saga_activities.messaging.outbox import decrypted_event, event_row, stored_event
from saga_activities.value_cipher import ValueCipher, encrypted_text
from saga_activities.value_places import result_place
from sagas.actions.events import Event
from sagas.settings.codec import CodecKey
from sagas.text.exact_json import decode_json, encode_json

CIPHER = ValueCipher([CodecKey("0123456789ab", b"k" * 32)])
FORMS = {"no codec": PLAIN, "codec": StoredValues(CIPHER, encrypts_outbox=True)}
PLACE = result_place("s-1", "pay", 1, "do")
FORGED = {"key": "0123456789ab", "data": "eA=="}

NAMES = st.sampled_from(["saga:encrypted", "saga:marker", "saga:value", "omitted", "key", "data", "a"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.text(max_size=5)
    | st.sampled_from(["saga:encrypted:0123456789ab:eA==", "saga:encrypted\0", "rejected", "elsewhere", "eA=="])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(value=VALUES)
@example(value={"saga:encrypted": FORGED})
@example(value={"saga:value": {"saga:encrypted": FORGED}})
@example(value={"saga:marker": "rejected", "reason": "no", "details": {}})
@example(value="saga:encrypted:0123456789ab:eA==")
@example(value={"amount": Decimal("1.10")})
def test_every_value_comes_back_from_every_store(form: StoredValues, value: Any) -> None:
    text = encode_json(value).decode()
    stored = form.encrypt_result(PLACE, result_codec.encode(value))
    clear = form.decrypt_result(PLACE, stored)
    assert (result_codec.decode_marker(clear), result_codec.decode(clear)) == (None, value)
    assert form.decrypt_json(PLACE, form.encrypt_json(PLACE, text)) == text
    assert form.decrypt_bytes(PLACE, form.encrypt_bytes(PLACE, text.encode()) or b"") == text.encode()

    row = {**event_row(Event("orders", text, value, {"h": text})), "saga_id": "s-1"}
    columns = {name: row[name] for name in ("value", "event_key", "headers")}
    assert decrypted_event(stored_event(row, form), form) == columns
    assert decode_json(columns["value"]) == value


@given(value=VALUES)
def test_every_dead_letter_is_printed_in_clear(value: Any) -> None:
    text = encode_json(value)
    assert decrypt_passages(CIPHER, encrypted_text(CIPHER, PLACE, text).encode()) == (text, 0)
