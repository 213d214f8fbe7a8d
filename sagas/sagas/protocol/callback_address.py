"""The address at which a participant calls back: it names the request, and proves that it came with that request."""

from __future__ import annotations

from urllib.parse import quote, unquote

from sagas.settings.signing_keys import SigningKeys
from sagas.text.exact_json import encode_json

CALLBACK_PATH = "/callbacks/{saga}/{call:path}/{token}"
"""The route of callbacks. Saga and call are percent-encoded."""

_KEY_ID = 12
"""The hexadecimal digits of a token that name its key; those of the signature follow."""


def callback_address(public_url: str, saga_id: str, key: str, keys: SigningKeys) -> str | None:
    """The address for the call with this idempotency key; None without a key to sign it."""
    signature = keys.sign("callback address", _content(saga_id, key))
    if signature is None:
        return None
    call = quote(key.removeprefix(f"{saga_id}/"), safe="/")
    token = signature["key"] + signature["hmac"]
    return f"{public_url.rstrip('/')}/callbacks/{quote(saga_id, safe='')}/{call}/{token}"


def called_back(saga: str, call: str, token: str, keys: SigningKeys) -> tuple[str, str] | None:
    """The id of the saga and the key of the call that this address names; None if no key of the project has signed it.

    The parts are percent-encoded, as they were sent.
    """
    saga_id = unquote(saga)
    key = f"{saga_id}/{unquote(call)}"
    signature = {"key": token[:_KEY_ID], "hmac": token[_KEY_ID:]}
    return (saga_id, key) if keys.verifies("callback address", _content(saga_id, key), signature) else None


def _content(saga_id: str, key: str) -> bytes:
    return encode_json([saga_id, key])
