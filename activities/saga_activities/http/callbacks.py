"""Callbacks of ``uses: http``: the address that a request carries, and the outcome that a callback has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from saga_activities.http.attempt import MAX_QUOTED_BODY, quotable_body
from saga_activities.http.response import (
    MAX_EXCERPT,
    HttpResponse,
    ResultError,
    compile_condition,
    compile_result,
)
from sagas.builtins.callbacks import CALLBACK, CALLBACK_ADDRESS
from sagas.errors import Unequipped
from sagas.protocol.callback_address import callback_address
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.size_limits import limit_size
from sagas.settings.signing_keys import SigningKeys
from sagas.sql_text.tokens import shown
from sagas.text.json_values import map_texts


class CallbackAddresses:
    """The addresses of a project: ``public_url`` is where participants reach `saga serve`."""

    def __init__(self, public_url: str | None = None, keys: SigningKeys | None = None) -> None:
        self._public_url = public_url
        self._keys = keys or SigningKeys()

    def address(self, saga_id: str, key: str) -> str:
        """The address for the call with this idempotency key. Raises Unequipped if this worker has none."""
        if self._public_url is None:
            raise Unequipped("`callback` needs the address of `saga serve`: public_url under [serve] in saga.toml")
        address = callback_address(self._public_url, saga_id, key, self._keys)
        if address is None:
            raise Unequipped("`callback` needs a key that signs its address: definition_key under [worker]")
        return address


_IN_URLS = ("path", "url")


def request_of(arguments: Mapping[str, Any], address: str) -> dict[str, Any]:
    """The arguments of the request itself: with the address of its callback, from which the result is computed."""
    placeholder = arguments[CALLBACK][CALLBACK_ADDRESS]
    in_urls = quote(address, safe="")
    request = {
        name: map_texts(
            value, lambda text, name=name: text.replace(placeholder, in_urls if name in _IN_URLS else address)
        )
        for name, value in arguments.items()
        if name not in (CALLBACK, "result")
    }
    return {**request, "result": "null"}


def read_callback(arguments: Mapping[str, Any], participant: str) -> Outcome:
    """The outcome of the request, as a result with ``done``: false if the callback is neither a yes nor a no.

    ``arguments``: ``callback`` and ``result`` of the request, and the ``response``, i.e. what was sent to the address.
    """
    settings, sent = arguments[CALLBACK], arguments["response"]
    response = HttpResponse(200, dict(sent.get("headers") or {}), sent["text"])
    body = quotable_body(response)
    quoted = f": `{shown(body, MAX_QUOTED_BODY)}`" if body else ""
    try:
        is_rejected = compile_condition("callback.rejected", settings.get("rejected", "false"))
        is_done = compile_condition("callback.done", settings.get("done", "true"))
        to_result = compile_result(arguments.get("result"))
        if is_rejected(response):
            details = {"body": body[:MAX_EXCERPT]} if body else {}
            failure = Failure("Rejected", f"{participant} has called back with a no{quoted}", details, quotes=True)
            return Outcome("rejected", failure=failure)
        if not is_done(response):
            return Outcome.done({"done": False})
        return Outcome.done({"done": True, "result": limit_size(to_result(response))})
    except ResultError as error:
        message = f"{participant} has called back, and it is unknown with what: {error}{quoted}"
        return Outcome("unknown", failure=Failure("definition", message, quotes=True), retryable=False)
