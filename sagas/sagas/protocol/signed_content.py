"""The bytes of each kind of message that are signed: what a signature holds for, see ``settings/signing_keys.py``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.text.exact_json import canonical_json, decode_json, encode_json


def signed_json(value: Any) -> bytes:
    """Encode a JSON value as bytes to sign: equal for equal values, also after they were sent: there a float has become
    a decimal.
    """
    return canonical_json(decode_json(encode_json(value))).encode()


def message_content(to: Sequence[str], message: Mapping[str, Any]) -> bytes:
    """Return what is signed of a message: all of it but the signature, and ``to``, the ids of the only place where it
    counts. The message itself does not name that place, so its reader takes the ids from Temporal.

    =============  ================================================================================================
    notification   the id of the run that delivers it
    redelivery     the id of the run that starts the saga again
    detached       the id of the saga, which is that of its own run
    continuation   the type and the id of the workflow, and the run before
    report         the id and the run of the parent
    cancel         the id of the nested saga, and the first run of its chain
    decision       the id and the run of the saga, and the update, which Temporal carries out once in a run
    state          the id of the saga, its run, and a random text of the reader who asks
    view           the same
    outcome        the id and the run
    schedule       the id of the schedule
    callback       the id of the saga
    undo           the id of the undo's run, and for a nested saga the run of the parent
    =============  ================================================================================================
    """
    return signed_json([list(to), {name: value for name, value in message.items() if name != "signature"}])


def view_message(view: bytes) -> dict[str, Any]:
    """Return what a run signs of its outcome, and of its answer to a query: the digest of this view."""
    return {"view": hashlib.sha256(view).hexdigest()}


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
    """Return what else is signed of a failure: a failure after which Temporal repeats the attempt is not final."""
    return {"failure": type, "final": final}
