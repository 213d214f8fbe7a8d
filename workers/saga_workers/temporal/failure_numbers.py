"""Failures whose numbers the SDK cannot read: any client may send a value of an enumeration that does not exist."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.failure.v1 import Failure


def with_default_numbers(failure: Failure) -> Failure:
    """A copy of the failure and its causes in which the enumerations, such as a category, and the delays are unset."""
    copy = Failure()
    copy.CopyFrom(failure)
    each = copy
    while True:
        if (kind := each.WhichOneof("failure_info")) is not None:
            _unset_numbers(getattr(each, kind))
        if not each.HasField("cause"):
            return copy
        each = each.cause


def _unset_numbers(info: Message) -> None:
    for field in info.DESCRIPTOR.fields:
        is_delay = field.message_type is not None and field.message_type.full_name == Duration.DESCRIPTOR.full_name
        if is_delay or field.enum_type is not None:
            info.ClearField(field.name)
