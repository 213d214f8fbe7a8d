"""The headers of a dead letter, and for whom it is when somebody sends it to its topic again."""

from __future__ import annotations

from collections.abc import Mapping

from saga_activities.kafka.record_codec import RawHeaders

REASON_HEADER = "sagadlqreason"
GROUP_HEADER = "sagadlqgroup"
TOPIC_HEADER = "sagadlqtopic"
TOPIC_ID_HEADER = "sagadlqtopicid"
PARTITION_HEADER = "sagadlqpartition"
OFFSET_HEADER = "sagadlqoffset"
TIMESTAMP_HEADER = "sagadlqtimestamp"


def groups_of_resent(topic: str, headers: RawHeaders) -> set[str]:
    """The consumer groups for which a record of ``topic`` is; empty for a record that every reader handles.

    A dead letter that is sent to its topic again is for the group that has not handled it: the other readers have. In
    any other topic, such as that of dead letters, it is a record like all others, and so it is without a group.
    """
    if (TOPIC_HEADER, topic.encode()) not in headers:
        return set()
    return {raw.decode(errors="replace") for name, raw in headers if name == GROUP_HEADER and raw}


def is_resent(topic: str, headers: Mapping[str, str]) -> bool:
    """True for a dead letter that was sent to its ``topic`` again, which repeats a record for one consumer group."""
    return bool(headers.get(GROUP_HEADER)) and headers.get(TOPIC_HEADER) == topic
