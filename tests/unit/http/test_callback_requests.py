"""The address of a callback in the parts of a request, and the outcome that a callback has."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from saga_activities.http import CallbackAddresses, read_callback, request_of
from saga_activities.http.request import build_request
from sagas.builtins.callbacks import address_placeholder
from sagas.errors import UsageError
from sagas.protocol.callback_address import called_back
from sagas.settings.signing_keys import SigningKeys
from sagas.text.masked_texts import masking

KEYS = SigningKeys(("k" * 32,))
IDS = ("pay-1", "a/b", "with space", "ü%2F?#&+", 'it\'s "q"')


@pytest.mark.parametrize("saga", IDS)
@pytest.mark.parametrize("call", ["charge", "charge#0", "charge@2/undo", "charge#3/undo.1"])
def test_an_address_names_one_call_of_one_saga(saga: str, call: str) -> None:
    address = CallbackAddresses("https://sagas.example.com/base/", KEYS).address(saga, f"{saga}/{call}")
    base, parts = address.split("/callbacks/")
    first, *rest, token = parts.split("/")
    assert base == "https://sagas.example.com/base"
    assert called_back(first, "/".join(rest), token, KEYS) == (saga, f"{saga}/{call}")
    assert called_back(first, "/".join(rest), token, SigningKeys(("o" * 32,))) is None
    for forged in (("other", rest, token), (first, [*rest, "undo"], token), (first, rest, token[:-1] + "_")):
        assert called_back(forged[0], "/".join(forged[1]), forged[2], KEYS) is None


def test_the_address_is_filled_in_wherever_it_is_written() -> None:
    address = "https://sagas.example.com/callbacks/pay-1/charge/token"
    hole, other = address_placeholder("pay-1/charge", "digest"), address_placeholder("pay-1/charge", "another input")
    request = request_of(
        {
            "method": "POST",
            "path": f"/to/{hole}",
            "query": {"back": hole},
            "headers": {"x-back": hole},
            "json": {"back": [f"<{hole}>"], "other": other},
            "callback": {"timeout": "1m", "address": hole},
            "result": "response.json",
        },
        address,
    )
    sent = build_request(request, "https://bank")
    assert sent.url == f"https://bank/to/{quote(address, safe='')}?back={quote(address, safe='')}"
    assert sent.headers["x-back"] == address
    assert sent.content == f'{{"back":["<{address}>"],"other":"{other}"}}'.encode()
    assert request["result"] == "null"


@pytest.mark.parametrize("addresses", [CallbackAddresses(), CallbackAddresses("https://sagas.example.com")])
def test_a_project_without_an_address_or_a_key_sends_nothing(addresses: CallbackAddresses) -> None:
    with pytest.raises(UsageError, match="`callback` needs"):
        addresses.address("pay-1", "pay-1/charge")


@pytest.mark.parametrize(
    ("text", "kind", "result"),
    [
        ('{"status": "booked", "id": 9007199254740993}', "done", {"done": True, "result": 9007199254740993}),
        ('{"status": "pending"}', "done", {"done": False}),
        ('{"status": "declined", "account": "secret-1"}', "rejected", None),
        ('{"status": "booked"}', "unknown", None),
        ('{"status": "booked", "status": "declined"}', "unknown", None),
        ("not JSON", "unknown", None),
    ],
)
def test_the_outcome_of_a_callback(text: str, kind: str, result: object) -> None:
    arguments = {
        "callback": {"done": "response.json.status == 'booked'", "rejected": "response.json.status == 'declined'"},
        "result": "response.json.id",
        "response": {"headers": {"content-type": "application/json"}, "text": text},
    }
    with masking(["secret-1"]):
        outcome = read_callback(arguments, "bank")
    assert (outcome.kind, outcome.result) == (kind, result)
    assert outcome.failure is None or "secret-1" not in str(outcome.failure.to_json())
