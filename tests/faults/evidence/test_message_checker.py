"""Tests of the event rules: each corruption of a valid run is detected by the rule responsible for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.evidence.evidence import Effect
from tests.faults.evidence.messages import MESSAGE_RULES, Messages, OutboxRow, Record, check_messages

DID = (("debit", "do"), ("hold", "do"), ("hold", "undo"), ("debit", "undo"))
JOURNAL = tuple(Effect(step, op, float(at)) for at, (step, op) in enumerate(DID))
GOOD = Messages(
    outbox=tuple(OutboxRow(f"e{at}", operation, "PUBLISHED") for at, operation in enumerate(DID)),
    records=tuple(Record("events", 0, 2 * at, "saga-1", f"e{at}", operation) for at, operation in enumerate(DID)),
    offsets={"events/0": (8, 8), "progress/0": (4, 4)},
    noted=DID,
)

Corruption = Callable[[Messages], Messages]


def record(at: int, **changed: object) -> Corruption:
    """Change one record."""
    return lambda seen: replace(
        seen,
        records=tuple(
            replace(kafka_record, **changed) if n == at else kafka_record for n, kafka_record in enumerate(seen.records)
        ),
    )


def status(at: int, output: str) -> Corruption:
    return lambda seen: replace(
        seen, outbox=tuple(replace(row, status=output) if n == at else row for n, row in enumerate(seen.outbox))
    )


CORRUPTIONS: tuple[tuple[str, str, Corruption], ...] = (
    ("I5", "an event is lost", lambda seen: replace(seen, records=seen.records[:-1])),
    ("I5", "an event is there twice", lambda seen: replace(seen, records=(*seen.records, seen.records[-1]))),
    ("I5", "an event of an aborted transaction", record(1, event="nobody-knows-it")),
    ("I5", "an event is there that is not marked", status(2, "NEW")),
    ("I5", "an effect has two events", record(1, operation=("debit", "do"))),
    (
        "I5",
        "an effect has no event at all",
        lambda seen: replace(seen, outbox=seen.outbox[:-1], records=seen.records[:-1]),
    ),
    ("I6", "two events changed places", lambda seen: record(0, offset=3)(seen)),
    ("I6", "a key is in two partitions", record(1, partition=1)),
    ("I6", "a consumer did one twice", lambda seen: replace(seen, noted=(*DID, DID[-1]))),
    ("I6", "a consumer did not do one", lambda seen: replace(seen, noted=DID[1:])),
    ("I6", "a consumer did them in another order", lambda seen: replace(seen, noted=DID[::-1])),
    ("I6", "a consumer did what came too late", lambda seen: replace(seen, stale=frozenset({DID[0]}))),
    ("I12", "an event waits for ever", status(3, "NEW")),
    ("I12", "an event is refused", status(3, "REFUSED")),
    ("I12", "a transaction stays open", lambda seen: replace(seen, offsets={**seen.offsets, "progress/0": (4, 5)})),
)


def test_a_valid_run_has_no_violations() -> None:
    assert check_messages(GOOD, JOURNAL) == []


@pytest.mark.parametrize(
    ("rule", "what", "corrupt"), CORRUPTIONS, ids=[f"{corruption[0]} {corruption[1]}" for corruption in CORRUPTIONS]
)
def test_corrupted_evidence_is_detected(rule: str, what: str, corrupt: Corruption) -> None:
    messages = check_messages(corrupt(GOOD), JOURNAL)
    assert any(sentence.startswith(f"{rule}: ") for sentence in messages), f"{what}: {messages}"


def test_every_rule_has_a_violation() -> None:
    assert {corruption[0] for corruption in CORRUPTIONS} == set(MESSAGE_RULES)
