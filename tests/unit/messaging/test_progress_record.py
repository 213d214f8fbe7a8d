"""The record a relay leaves for the next one, which may be of another version."""

from __future__ import annotations

import json

import pytest

from saga_workers.relay.progress_record import NewerRelay, ProgressRecord, decode_progress, encode_progress


def test_the_record_round_trips() -> None:
    for progress in (ProgressRecord(3, ["a", "b"], ["c"]), ProgressRecord(1, ["a"])):
        key, value = encode_progress(2, progress)
        assert key == b"2"
        record = decode_progress(value)
        assert (record.batch, [*record.event_ids], [*record.previous_event_ids]) == (
            progress.batch,
            [*progress.event_ids],
            [*progress.previous_event_ids],
        )


def test_a_record_of_a_newer_relay_is_refused() -> None:
    value = json.dumps({"version": 2, "shard": 0, "batch": 7, "event_ids": ["a"], "more": {}}).encode()
    with pytest.raises(
        NewerRelay, match=r"a newer relay has published this outbox .* version 2, this one reads up to 1"
    ):
        decode_progress(value)
