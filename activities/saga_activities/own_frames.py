"""Logs and notes where an author's function has raised an error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from saga_activities.guard.database_errors import classify_database_error
from saga_activities.json_results import UnusableResult
from sagas.errors import AlreadyCompensated, DefiniteFailure, NeedsOperator, Rejected, RowLocked, SagaError
from sagas.text.own_frames import keep_own_frames, note_place

_EXPECTED = (Rejected, AlreadyCompensated, NeedsOperator, DefiniteFailure, RowLocked, SagaError, UnusableResult)
"""Errors whose message says all."""


@contextmanager
def logging_own_frames(
    log: logging.Logger | logging.LoggerAdapter[Any],
    function: Callable[..., Any],
    name: str,
    attempt: int,
    **options: Any,
) -> Iterator[None]:
    """Log where in the author's files ``function`` has raised an error: the outcome keeps only the innermost place.

    Repeated attempts are logged for debugging only, and so is an error of a database, which names its statement.
    """
    try:
        yield
    except _EXPECTED:
        raise
    except Exception as error:
        keep_own_frames(error, package=str(getattr(function, "__module__", "")).partition(".")[0])
        note_place(error)
        is_new = attempt == 1 and classify_database_error(error) is None
        if error.__traceback__ is not None:
            log.log(logging.WARNING if is_new else logging.DEBUG, "%s raised an error", name, exc_info=error, **options)
        raise
