"""The bytes of each kind of message that are signed: what a signature holds for, see ``settings/signing_keys.py``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sagas.text.exact_json import canonical_json, decode_json, encode_json


def signed_json(value: Any) -> bytes:
    """Encode a JSON value as bytes to sign: equal for equal values, also after they were sent: there a float has become
    a decimal.
    """
    return canonical_json(decode_json(encode_json(value))).encode()


def start_content(workflow_id: str, header: bytes, starts: Mapping[str, Any]) -> bytes:
    """Return what is signed of a start: its run, its definition, and the input of each saga by its id.

    So nobody who reads a start can start a definition again, which may have been replaced, with anything else.
    """
    digests = [hashlib.sha256(part).hexdigest() for part in (header, signed_json(starts))]
    return encode_json([workflow_id, *digests])


def detached_content(saga_id: str, value: Any) -> bytes:
    """Return what is signed of a saga that leaves a bulk workflow: its id, and the input of its own run."""
    return signed_json({"saga_id": saga_id, "input": value})


def decision_content(saga_id: str, run_id: str, update_id: str, decision: Mapping[str, Any]) -> bytes:
    """Return what is signed of an operator's decision: all of it, for this run of the saga, and for this update.

    Temporal carries out an update of one id once in a run, so a decision cannot be repeated by who reads the history.
    """
    signed = {name: value for name, value in decision.items() if name != "signature"}
    return signed_json({"saga_id": saga_id, "run_id": run_id, "update_id": update_id, "decision": signed})


def outcome_message(workflow_id: str, run_id: str, view: bytes) -> dict[str, Any]:
    """Return what a run signs of its outcome: its ids, and the digest of the view that its memo has."""
    return {"workflow_id": workflow_id, "run_id": run_id, "view": hashlib.sha256(view).hexdigest()}


def message_content(message: Mapping[str, Any]) -> bytes:
    """Return what is signed of a message of a run: all of it but the signature."""
    return signed_json({name: value for name, value in message.items() if name != "signature"})


def call_content(activity_type: str, workflow_id: str, run_id: str, call: str, argument: bytes) -> bytes:
    """Return what is signed of a call to an activity: which one, of which run, with which argument.

    The argument of a step's call has the ids of its saga and of its step, its operation and its generation. ``call``:
    tells calls with the same argument apart, see :func:`sagas.workflow.run_trust.latest_call`.
    """
    return encode_json([activity_type, workflow_id, run_id, call, hashlib.sha256(argument).hexdigest()])


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The signature of a call to an activity, with the run and the ``call`` that :func:`call_content` has."""

    key: str
    hmac: str
    run_id: str
    call: str

    def to_header(self) -> bytes:
        return " ".join((self.key, self.hmac, self.run_id, self.call)).encode()

    @classmethod
    def from_header(cls, header: bytes) -> CallSignature | None:
        """Read what :meth:`to_header` has written; None for anything else."""
        fields = header.decode("utf-8", "replace").split(" ")
        return cls(*fields) if len(fields) == 4 else None

    @property
    def signature(self) -> dict[str, str]:
        return {"key": self.key, "hmac": self.hmac}


def answer_content(content: Mapping[str, Any], answer: bytes) -> bytes:
    """Return what is signed of the answer of an activity. ``content``: ``activity``, ``workflow_id``, the ``call`` of
    :func:`call_content`, the digest of the ``request``, and of a failure what :func:`failure_content` adds.
    """
    return signed_json({**content, "answer": hashlib.sha256(answer).hexdigest()})


def write_answer_signature(signature: Mapping[str, str]) -> bytes:
    """Return the signature of an answer as the metadata of its payload carry it."""
    return f"{signature['key']} {signature['hmac']}".encode()


def read_answer_signature(metadata: bytes) -> dict[str, str]:
    """Return the signature that :func:`write_answer_signature` has written; of anything else an invalid one."""
    key, _, hmac = metadata.decode("utf-8", "replace").partition(" ")
    return {"key": key, "hmac": hmac}


def failure_content(type: str | None, *, final: bool) -> dict[str, Any]:
    """Return what else is signed of a failure: a failure after which Temporal repeats the attempt is no final one."""
    return {"failure": type, "final": final}
