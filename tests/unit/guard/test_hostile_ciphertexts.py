"""A value that only looks encrypted is refused in bounded time, with a bounded text, and never taken for a real one.

Rows, dead letters and payloads can be written by others than the project, who choose every byte of them.
"""

from __future__ import annotations

import asyncio
import base64
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload

from saga_activities.encrypted_passages import decrypt_passages
from saga_activities.guard.result_codec import encode_encrypted
from saga_activities.guard.stored_values import ENCRYPTED_BYTES, PLAIN, StoredValues
from saga_activities.guard.unreadable_rows import UnreadableRow
from saga_activities.value_cipher import UnknownKey, ValueCipher, encrypted_text
from saga_activities.value_places import result_place
from saga_workers.temporal.payload_codec import EncryptingCodec, missing_key_id
from sagas.settings.codec import CodecKey
from tests.helpers.sampling import examples

KEY, OTHER = CodecKey("0123456789ab", b"k" * 32), CodecKey("ba9876543210", b"o" * 32)
CIPHER = ValueCipher([KEY])
CODEC = EncryptingCodec(CIPHER)
PLACE, ELSEWHERE = result_place("s-1", "pay", 1, "do"), result_place("s-2", "pay", 1, "do")
FORMS = {"codec": StoredValues(CIPHER, encrypts_outbox=True), "no codec": PLAIN}
MAX_TEXT = 300
"""Characters of a message about a value."""

REAL = {
    "this place": CIPHER.encrypt_at(PLACE, b'"mine"'),
    "another place": CIPHER.encrypt_at(ELSEWHERE, b'"of another"'),
    "no place": CIPHER.encrypt(b'"payload"'),
    "another key": ValueCipher([OTHER]).encrypt_at(PLACE, b'"of another key"'),
    "nothing": CIPHER.encrypt_at(ELSEWHERE, b""),
}

KEY_IDS = st.sampled_from([KEY.id, KEY.id, OTHER.id, "", "x" * 100_000, "0123456789AB", "\u202e\n\x1b[2J", "０" * 12])


@st.composite
def ciphertexts(draw: st.DrawFn) -> bytes:
    """Bytes of any length, or a real value for another place or key that is cut, extended or changed."""
    data = draw(st.sampled_from([value for name, value in REAL.items() if name != "this place"]) | st.binary())
    change = draw(st.sampled_from(["none", "cut", "longer", "bit"]))
    if change == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if change == "longer":
        return data + draw(st.binary(min_size=1, max_size=40))
    if change == "bit" and data:
        at = draw(st.integers(0, len(data) - 1))
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    return data


def is_refused(read: Callable[[], Any]) -> bool:
    """True if the value is refused with a text that fits on a line; False if it is read."""
    try:
        read()
    except (UnreadableRow, UnknownKey) as error:
        text = str(error)
        assert len(text) <= MAX_TEXT, text
        assert text.isprintable(), text
        return True
    return False


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(key_id=KEY_IDS, data=ciphertexts())
@example(key_id=KEY.id, data=REAL["another place"])
@example(key_id=KEY.id, data=REAL["no place"])
@example(key_id=KEY.id, data=b"")
@example(key_id=KEY.id, data=b"\0" * 27)
@examples(100, 2_000)
def test_no_row_has_what_was_not_encrypted_for_it(form: StoredValues, key_id: str, data: bytes) -> None:
    encoded = base64.b64encode(data).decode()
    assert is_refused(lambda: form.decrypt_result(PLACE, encode_encrypted(key_id, encoded)))
    assert is_refused(lambda: form.decrypt_json(PLACE, f"saga:encrypted:{key_id}:{encoded}"))
    stored = ENCRYPTED_BYTES + key_id.encode("utf-8", "surrogatepass") + data
    assert is_refused(lambda: form.decrypt_bytes(PLACE, stored))


@given(text=st.text(st.characters() | st.sampled_from('{}":\\=+/Aa0'), max_size=60))
@example(text='{"saga:encrypted":{"key":"0123456789ab","data":"\u00e9"}}')
@example(text='{"saga:encrypted":{"key":"0123456789ab","data":"eA"}}')
@example(text='{"saga:encrypted":{"key":"0123456789ab","data":["eA=="]}}')
@example(text='{"saga:encrypted":' + "[" * 100_000)
@example(text="saga:encrypted:0123456789ab:\ud800")
@examples(200, 3_000)
def test_a_text_that_looks_encrypted_is_refused_or_itself(text: str) -> None:
    form = FORMS["codec"]
    for prefix in ("", "saga:encrypted:", "saga:encrypted:0123456789ab:", '{"saga:encrypted":'):
        whole = prefix + text
        for read in (form.decrypt_result, form.decrypt_json):
            assert is_refused(partial(read, PLACE, whole)) or read(PLACE, whole) == whole


ENCODINGS = st.sampled_from([b"binary/encrypted", b"binary/encrypted", b"json/plain", b"\xff", b""])


@given(encoding=ENCODINGS, key_id=KEY_IDS.map(str.encode) | st.binary(max_size=20), data=ciphertexts())
@example(encoding=b"binary/encrypted", key_id=b"0123456789ab", data=REAL["this place"])
@example(encoding=b"binary/encrypted", key_id=b"0123456789ab", data=REAL["no place"])
@examples(200, 3_000)
def test_a_payload_that_looks_encrypted_stays_as_it_is(encoding: bytes, key_id: bytes, data: bytes) -> None:
    payload = Payload(metadata={"encoding": encoding, "encryption-key-id": key_id}, data=data)
    decoded: list[Payload] = []
    if not is_refused(lambda: decoded.extend(asyncio.run(CODEC.decode([payload])))):
        assert decoded == [payload]
        assert missing_key_id(payload, CODEC) is None


PASSAGE = encrypted_text(CIPHER, PLACE, b'"mine"').encode()
LONG = {
    "beginnings": b"saga:encrypted:" * 100_000,
    "backslashes": b'{"saga:encrypted":' + b"\\" * 1_000_000,
    "spaces": b'{"saga:encrypted":' + b" " * 1_000_000,
    "beginnings with spaces": (b'{"saga:encrypted":' + b" " * 1_000) * 1_000,
    "a value without an end": b'{"saga:encrypted":{"key":"0123456789ab","data":"' + b"A" * 1_000_000,
    "signs of an end": b"saga:encrypted:0123456789ab:" + b"A=" * 500_000,
    "values of nobody": b"saga:encrypted:0123456789ab:AAAA " * 30_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_text_is_read_once(text: bytes) -> None:
    """If the rest of the text were read again at each place, it would take hours."""
    tracemalloc.start()
    clear, unread = decrypt_passages(CIPHER, text + b" " + PASSAGE)
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (clear, unread) == (
        text + b' "mine"',
        text.count(b"AAAA ") + text.startswith(b"saga:encrypted:0123456789ab:A="),
    )
    assert memory < 20 * len(text)


@given(
    parts=st.lists(
        st.sampled_from([b"saga:encrypted:", b'{"', b"\\", PASSAGE, b'":', b" ", b"0123456789ab"]) | st.binary()
    )
)
@examples(100, 2_000)
def test_every_passage_is_decrypted_beside_what_looks_like_one(parts: list[bytes]) -> None:
    text = b"\n".join(parts)
    clear, _ = decrypt_passages(CIPHER, text)
    assert clear.count(b'"mine"') == text.count(PASSAGE)
