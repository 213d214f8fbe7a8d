"""The record a relay leaves for the next one, which may be of another version."""

from __future__ import annotations

import json

import pytest

from saga_workers.relay.progress import NewerRelay, Progress, decode, encode


def test_what_is_written_is_read() -> None:
    for progress in (Progress(3, ["a", "b"], ["c"]), Progress(1, ["a"])):
        key, value = encode(2, progress)
        assert key == b"2"
        found = decode(value)
        assert (found.batch, [*found.event_ids], [*found.before]) == (
            progress.batch,
            [*progress.event_ids],
            [*progress.before],
        )


def test_a_record_of_an_older_relay() -> None:
    assert decode(b'{"shard": 0, "batch": 7, "ids": ["a"]}') == Progress(7, ["a"])


def test_a_record_of_a_newer_relay_is_not_guessed_at() -> None:
    value = json.dumps({"version": 2, "shard": 0, "batch": 7, "ids": ["a"], "more": {}}).encode()
    with pytest.raises(NewerRelay, match=r"a newer relay has published this outbox .* version 2, this one knows 1"):
        decode(value)
