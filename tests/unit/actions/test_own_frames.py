"""The frames of an author's function, without those of the engine, of Python and of libraries around and inside it."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from saga_activities.action_errors import action_failure
from saga_activities.own_frames import logging_own_frames
from sagas.definition.times import parse_duration
from sagas.errors import Rejected, UsageError
from sagas.presentation.styled_text import error_text
from sagas.protocol.saga_view import ErrorView
from sagas.text.own_frames import keep_own_frames


def _decodes() -> Any:
    return json.loads("{")  # two frames of the standard library


def _wraps() -> None:
    try:
        _decodes()
    except ValueError as error:
        raise RuntimeError("no order") from error


def _asks_the_engine() -> None:
    parse_duration("soon")


@pytest.mark.parametrize(
    ("function", "names"),
    [(_decodes, ["_decodes"]), (_wraps, ["_wraps", "_decodes", "_wraps"]), (_asks_the_engine, ["_asks_the_engine"])],
)
def test_only_the_authors_frames_are_left(function: Callable[[], Any], names: list[str]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  what it raises is not the point
        function()
    keep_own_frames(caught.value)
    frames = [line for line in traceback.format_exception(caught.value) if line.startswith("  File ")]
    assert [frame.splitlines()[0].rpartition(" ")[2] for frame in frames if "test_only" not in frame] == names


@pytest.mark.parametrize(
    ("error", "attempt", "level"),
    [
        (RuntimeError("jammed"), 1, logging.WARNING),
        (RuntimeError("jammed"), 2, logging.DEBUG),
        (ConnectionError("gone"), 1, logging.DEBUG),
        (Rejected("no"), 1, None),
        (UsageError("no"), 1, None),
    ],
)
def test_an_expected_error_and_a_repeated_one_are_no_warning(
    caplog: pytest.LogCaptureFixture, error: Exception, attempt: int, level: int | None
) -> None:
    log = logging.getLogger("saga.test")
    with (
        caplog.at_level(logging.DEBUG, "saga.test"),
        pytest.raises(type(error)),
        logging_own_frames(log, _wraps, "pay", attempt),
    ):
        raise error
    assert [record.levelno for record in caplog.records] == ([] if level is None else [level])


def _fails() -> None:
    raise RuntimeError("the carrier is closed")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_fails, "the carrier is closed (RuntimeError at tests/unit/actions/test_own_frames.py:{fails})"),
        (_wraps, "no order (RuntimeError at tests/unit/actions/test_own_frames.py:{wraps})"),
    ],
)
def test_an_operator_reads_where_the_code_has_raised(function: Callable[[], Any], message: str) -> None:
    with (
        pytest.raises(Exception) as caught,  # noqa: PT011  what it raises is not the point
        logging_own_frames(logging.getLogger("saga.test"), function, "pay", 1),
    ):
        function()
    failure = action_failure(caught.value)
    shown = error_text(ErrorView(type=failure.type, message=failure.message, details=failure.details))
    lines = {"fails": _fails.__code__.co_firstlineno + 1, "wraps": _wraps.__code__.co_firstlineno + 4}
    assert shown == message.format(**lines)


def test_an_error_of_the_engine_has_no_place() -> None:
    assert action_failure(ValueError("no")).details == {}
