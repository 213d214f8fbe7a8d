"""The check of `saga doctor` for dead letters: how many the topics have, and the newest one with its reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from saga_activities.kafka.admin import KafkaAdmin
from saga_activities.kafka.dead_letter_headers import GROUP_HEADER, REASON_HEADER
from saga_activities.kafka.range_reader import read_ranges
from saga_activities.kafka.record_codec import LAST_MILLISECOND, known_headers
from saga_workers.doctor.doctor_result import DoctorResult, timed_check
from saga_workers.topics.topic_inventory import DEAD_LETTER_SUFFIX
from sagas.definition.times import format_timestamp
from sagas.text.printable import printable_line
from sagas.text.shortening import counted, shorten

_LAST_OFFSETS = 10
"""Offsets at the end of a partition among which the newest dead letter is looked for: some are transaction markers."""

_MAX_REASON = 200

_HELP = (
    "'Start and signal sagas with Kafka events' of the documentation says how to read dead letters and send them again"
)


async def check_dead_letters(cluster: KafkaAdmin, topics: Iterable[str]) -> list[DoctorResult]:
    """A result for each topic of ``topics`` that has dead letters, which inform: nobody removes those that are done."""
    results: list[DoctorResult] = []
    for topic in topics:
        if topic.endswith(DEAD_LETTER_SUFFIX):
            check = f"dead letters of {topic.removesuffix(DEAD_LETTER_SUFFIX)}"
            result = await timed_check(check, partial(_describe, cluster, topic))
            if result.message:
                results.append(replace(result, ok=None, help=result.help or _HELP))
    return results or [DoctorResult("dead letters", True, "none")]


def _describe(cluster: KafkaAdmin, topic: str) -> str:
    """How many dead letters there are, and the newest one; empty for none. Raises KafkaOperationError."""
    if topic not in cluster.topics():
        return ""
    offsets = cluster.offsets(topic)
    count = sum(bounds.high_watermark - bounds.log_start for bounds in offsets.values())
    if count == 0:
        return ""
    ends = {
        partition: (max(bounds.log_start, bounds.last_stable - _LAST_OFFSETS), bounds.last_stable)
        for partition, bounds in offsets.items()
    }
    with contextlib.closing(read_ranges(cluster.settings, topic, ends)) as records:
        letters = [(record.timestamp()[1], record.offset(), known_headers(record)) for record in records]
    # The offsets in between include transaction markers and records that an open transaction hides.
    text = f"at most {counted(count, 'message')}"
    if not letters:
        return text
    milliseconds, _, headers = max(letters, key=lambda letter: letter[:2])
    when = format_timestamp(min(max(milliseconds, 0), LAST_MILLISECOND) / 1000)
    group, reason = (printable_line(headers.get(name, "?")) for name in (GROUP_HEADER, REASON_HEADER))
    return f"{text}, the newest one of {when} from {shorten(group)}: {shorten(reason, _MAX_REASON)}"
