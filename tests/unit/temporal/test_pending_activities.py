"""The words for a pending activity hold none of the marks of its id."""

from __future__ import annotations

from typing import get_args

import pytest
from temporalio.api.common.v1 import ActivityType
from temporalio.api.workflow.v1 import PendingActivityInfo

from saga_workers.views.pending_activities import activity_in_words, parse_activity_id
from sagas.machine.calls import CallKind
from sagas.protocol import payloads

WORDS = {
    "hotel#0": "hotel#0",
    "hotel#0~2": "hotel#0",
    "hotel~undo": "the undo of hotel",
    "hotel~undo.1": "the undo of hotel",
    "hotel~undo~3": "the undo of hotel",
    "hotel~seal": "the seal of hotel",
    "hotel~probe~1": "the probe of hotel",
    "hotel~write": "the recorded result of hotel",
}


def in_words(activity_id: str, activity_type: str = "shop.reserve") -> str:
    return activity_in_words(
        PendingActivityInfo(activity_id=activity_id, activity_type=ActivityType(name=activity_type))
    )


@pytest.mark.parametrize(("activity_id", "words"), WORDS.items())
def test_a_call_is_told_by_its_step_and_operation(activity_id: str, words: str) -> None:
    assert in_words(activity_id) == words


def test_each_kind_of_call_has_words() -> None:
    assert [kind for kind in get_args(CallKind) if "~" in in_words(f"hotel#0~{kind}")] == ["do"]  # it has no suffix


def test_each_activity_of_no_step_has_words() -> None:
    types = {name: value for name, value in vars(payloads).items() if name.endswith("_ACTIVITY")}
    assert types, "no activity types found"
    untold = sorted(name for name, value in types.items() if "saga." in in_words(f"{value}~1", value))
    assert untold == []


def test_only_rows_of_a_step_have_fields() -> None:
    assert parse_activity_id("hotel#0~2") == ("hotel#0", "")
    assert parse_activity_id("hotel#0~undo.1~2") == ("hotel#0", "compensation")
    assert parse_activity_id("hotel~confirm") == ("hotel", "confirmation")
    assert parse_activity_id("hotel~seal") == ("hotel", None)
