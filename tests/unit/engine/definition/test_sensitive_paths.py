"""The places of the sensitive values that a saga hands to a nested one, whose schema gets them marked."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.definition.sensitive_paths import (
    MAX_PATHS,
    WHOLE_INPUT,
    read_sensitive_paths,
    sensitive_paths,
    with_sensitive_paths,
)
from sagas.definition.sensitivity import masked, sensitive_values

VALUES = frozenset({"kanari ada", "90210417"})
INPUT = {"note": "of kanari ada", "pin": 90210417, "lines": [{"card": "kanari ada", "n": 1}, {"n": 2}], "ok": "x"}


def test_values_are_found_as_a_whole_and_in_a_text() -> None:
    paths = sensitive_paths(INPUT, VALUES)
    assert paths == (("lines", None, "card"), ("note",), ("pin",))
    schema = with_sensitive_paths({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}, paths)
    assert masked(schema, INPUT) == {
        "note": "•••",
        "pin": "•••",
        "lines": [{"card": "•••", "n": 1}, {"n": 2}],
        "ok": "x",
    }
    # So a saga that is nested more deeply gets them, too.
    assert sensitive_paths({"again": 90210417}, sensitive_values(schema, INPUT)) == (("again",),)


def test_the_parts_of_a_schema_stay() -> None:
    own = {"required": ["note"]}
    assert with_sensitive_paths({"allOf": [own]}, (("note",),))["allOf"][0] == own
    assert masked(with_sensitive_paths(True, (("note",),)), {"note": "a"}) == {"note": "•••"}


def test_nothing_is_marked_without_such_a_value() -> None:
    assert sensitive_paths({"ok": "x"}, VALUES) == ()
    assert sensitive_paths(INPUT, frozenset()) == ()


def test_a_sensitive_name_and_too_many_places_mark_what_is_around_them() -> None:
    assert sensitive_paths({"by": {"kanari ada": 1}}, VALUES) == (("by",),)
    assert sensitive_paths({"pin": 1}, frozenset({"pin"})) == ()
    many = {f"p{number}": "kanari ada" for number in range(MAX_PATHS + 1)}
    assert sensitive_paths(many, VALUES) == WHOLE_INPUT
    assert sensitive_paths({"p" * 3000: "kanari ada"}, VALUES) == WHOLE_INPUT
    assert masked(with_sensitive_paths({}, WHOLE_INPUT), many) == "•••"


@pytest.mark.parametrize("sent", [None, "note", [["note", 1]], ["note"], [["note"]] * (MAX_PATHS + 1)])
def test_another_memo_is_refused(sent: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_sensitive_paths(sent)
