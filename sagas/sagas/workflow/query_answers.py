"""The answers of a run to queries, signed for the random text of who asks: no other answer is new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from sagas.machine.machine import Machine
from sagas.protocol.payloads import pack_state
from sagas.protocol.signed_content import view_message
from sagas.text.exact_json import encode_json
from sagas.workflow.json_payloads import raw_json
from sagas.workflow.run_trust import signed_message


def state_answer(saga_id: str, machine: Machine, nonce: str) -> RawValue:
    """The state of a saga's machine."""
    to = [saga_id, workflow.info().run_id, nonce]
    return raw_json(signed_message("state", to, {"machine": pack_state(machine.snapshot())}))


def view_answer(saga_id: str, document: Mapping[str, Any], nonce: str) -> RawValue:
    """The view of a saga: the ``document`` alone for clients that verify nothing, and so send no ``nonce``.

    The signed one is a text, because the signature has the digest of its bytes.
    """
    if not nonce:
        return raw_json(document)
    view = encode_json(document)
    to = [saga_id, workflow.info().run_id, nonce]
    signature = signed_message("view", to, view_message(view)).get("signature")
    return raw_json({"view": view.decode(), "signature": signature})
