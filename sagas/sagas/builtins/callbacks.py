"""Callbacks: a participant accepts a request of `http` and answers it later, at an address that came with the request.

The address is made by the worker that sends the request, because it has a secret part. In the arguments of the request
:func:`address_placeholder` stands for it, so that no history has it.
"""

from __future__ import annotations

from typing import Literal

from sagas.text.digests import sha256_hex

CALLBACK = "callback"
"""The argument of `http` with ``timeout``, ``done`` and ``rejected``."""

CALLBACK_ACTION = "saga.callback"
"""The action that reads a callback: the outcome that it has for its request."""

CALLBACK_UPDATE = "saga-callback"
"""The update with which `saga serve` hands a callback to its saga."""

CALLBACK_HEADER = "Saga-Callback"
"""The header of a request with the address of its callback."""

CallbackRefusal = Literal["CallbackAnswered", "CallbackLate", "CallbackBusy"]
"""Why a callback does not count: another one was first; its request is waited for no longer; the saga cannot take it
now, because others wait to be read or its history is to be continued in a new run.
"""

DEFAULT_CALLBACK_TIMEOUT = "1h"

MAX_CALLBACK_BYTES = 64 * 1024
"""The size of the body of a callback: it is kept in the history of the saga."""


CALLBACK_ADDRESS = "address"
"""The field of `callback` that the engine adds: what stands for the address in this call."""


def address_placeholder(key: str, input_digest: str) -> str:
    """The value of ``step.callback_url`` for the call with this key, see the top of this module.

    No input can contain it, because it depends on the whole input: who sends one cannot have the address written where
    he can read it.
    """
    return f"saga-callback-{sha256_hex(f'{input_digest} {key}')}"
