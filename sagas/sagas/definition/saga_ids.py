"""The rules for ids of sagas: the one place that decides about them, for starts from anywhere and for the workers.

The engine forms the ids of its own runs from the saga's: ``<id>/<entry id>`` for a nested saga, ``<id>~undo`` and
``<id>~notify-…``. Therefore no other run may contain ``/`` or ``~`` in its id: it would be taken for one of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sagas.errors import UsageError
from sagas.input_limits import MAX_LABEL_BYTES, MAX_SAGA_ID_BYTES, MAX_WORKFLOW_ID_BYTES
from sagas.text.exact_json import encode_json, to_ascii
from sagas.text.printable import printable_line
from sagas.text.shortening import shorten

SAGA_NAME = "[a-z][a-z0-9-]*"
"""The pattern of the names of sagas, which are workflow types. The engine's own types have a dot: none is a saga's."""

UNDO_SUFFIX = "~undo"

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (also those that change the direction of text, and line separators) and lone surrogates. A fixed
list: workers with different versions of Unicode must decide alike."""


def saga_id_problem(id: str, *, owner: str | None = None) -> str | None:
    """Why no saga may be started under this id, as an error message; None if one may.

    ``owner`` is the id of the run that starts this one, or to which this one belongs: a nested saga, an undo or a
    notification has the id of its owner and more.
    """
    if (problem := workflow_id_problem(id)) is not None:
        return problem
    shown = _shown(id)
    if owner is not None and id.startswith((f"{_saga_of(owner)}/", f"{_saga_of(owner)}~")):
        return None
    if UNPRINTABLE.search(id):
        return f"the id {shown} must not contain control characters"
    if id != id.strip():
        return f"the id {shown} must not begin or end with white space"
    if id.endswith(UNDO_SUFFIX):
        return f"the id {shown} must not end in {UNDO_SUFFIX}, which marks the undo of a saga"
    if "~" in id:
        return f"the id {shown} must not contain ~, which marks runs of the engine"
    if "/" in id:
        return f"the id {shown} must not contain /, which marks nested sagas"
    if (size := len(id.encode())) > MAX_SAGA_ID_BYTES:
        return f"the id {shown} has {size} bytes; the maximum is {MAX_SAGA_ID_BYTES}"
    return None


def label_problem(labels: Iterable[str]) -> str | None:
    """Why Temporal would not store these labels (``name=value``), as an error message; None if it would."""
    texts = list(labels)
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"the label {_shown(text)} cannot be encoded in UTF-8"
        if "\0" in text:
            return f"the label {_shown(text)} must not contain control characters"
    size = len(to_ascii(encode_json(texts).decode()))
    if size > MAX_LABEL_BYTES:
        return f"the labels have {size} bytes; the maximum of all together is {MAX_LABEL_BYTES}"
    return None


def check_saga_name(name: object) -> str:
    """The name. Raises UsageError if a workflow that is not a saga may have it, such as one of the engine's."""
    if not isinstance(name, str):
        raise UsageError(f"the name of a saga must be a string, not {type(name).__name__}")
    if re.fullmatch(SAGA_NAME, name) is None:
        raise UsageError(f"{_shown(name)} is not the name of a saga: lower-case letters, digits and -")
    return name


def check_saga_id(id: object) -> str:
    """The id. Raises UsageError if no saga may be started under it."""
    if not isinstance(id, str):
        raise UsageError(f"the id of a saga must be a string, not {type(id).__name__}")
    if (problem := saga_id_problem(id)) is not None:
        raise UsageError(problem)
    return id


def workflow_id_problem(id: str) -> str | None:
    """Why no run of any kind can have this id, so that there is nothing to look up, either; None if one can."""
    if not id.strip():
        return "the id is empty"
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        return f"the id {_shown(id)} cannot be encoded in UTF-8"
    if "\0" in id:
        return f"the id {_shown(id)} must not contain control characters"
    if size > MAX_WORKFLOW_ID_BYTES:
        return f"the id {_shown(id)} has {size} bytes; the maximum is {MAX_WORKFLOW_ID_BYTES}"
    return None


def _shown(text: str) -> str:
    """A text for a message: at most 80 characters, with escapes for what cannot be printed. With blanks it is in
    quotes, as nobody sees otherwise where it ends.
    """
    shown = printable_line(shorten(text))
    return f"'{shown}'" if " " in text or text != text.strip() else shown


def _saga_of(run: str) -> str:
    """The id of the saga of a run, which may be its undo."""
    return run.removesuffix(UNDO_SUFFIX)
