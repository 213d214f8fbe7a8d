"""The editors' schema accepts what the parser accepts, and knows the commonest mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from sagas.definition.diagnostics import Report
from sagas.definition.parser.language import language_schema
from sagas.definition.parser.yaml_nodes import load_yaml
from tests.unit.engine.definition.language.test_digest import BASE, SAME
from tests.unit.engine.definition.mistake import ACTIONS, Mistake
from tests.unit.engine.definition.mistakes import MISTAKES

PLAIN = Draft7Validator(language_schema())
WITH_ACTIONS = Draft202012Validator(language_schema(ACTIONS))
STRUCTURAL = ("SAGA104", "SAGA105", "SAGA106", "SAGA107", "SAGA109")
BEYOND = {
    "the longest wait is the shortest",  # comparing two values is beyond JSON Schema
    "intervals of `defaults`",
    "intervals of undos of `defaults`",
    *(f"the signal {name}" for name in ("saga-cancel", "saga-parked", "saga-locks", "__temporal_x")),
}
"""Mistakes that the schema lets pass: only the parser tells why a name is reserved."""

ARGUMENTS = ("SAGA403", "SAGA404")


def data(text: str) -> Any:
    node = load_yaml(text, Report("a.yaml"))
    assert node is not None
    return node.to_json()


def test_it_is_a_schema() -> None:
    Draft7Validator.check_schema(language_schema())
    Draft202012Validator.check_schema(language_schema(ACTIONS))


def _keywords(schema: Any) -> Iterator[str]:
    """The keywords of a schema and of the schemas in it."""
    if not isinstance(schema, dict):
        return
    yield from schema
    for name, value in schema.items():
        if name in ("properties", "patternProperties"):
            parts = list(value.values())
        elif name in ("const", "enum"):
            parts = []
        else:
            parts = value if isinstance(value, list) else [value]
        for part in parts:
            yield from _keywords(part)


def test_the_schema_of_the_language_has_only_keywords_of_draft_7() -> None:
    """SchemaStore refuses unknown ones, and editors pass over those of later drafts without a word."""
    keywords = {*Draft7Validator.META_SCHEMA["properties"]}

    assert {*_keywords(language_schema())} - keywords == set()


@pytest.mark.parametrize("text", [BASE, *SAME.values()])
def test_valid_definitions_pass(text: str) -> None:
    for validator in (PLAIN, WITH_ACTIONS):
        assert [error.message for error in validator.iter_errors(data(text))] == []


@pytest.mark.parametrize(
    "mistake",
    [mistake for mistake in MISTAKES if mistake.code in STRUCTURAL and mistake.about not in BEYOND],
    ids=lambda mistake: f"{mistake.code}-{mistake.about}",
)
def test_structural_mistakes_are_refused(mistake: Mistake) -> None:
    assert not PLAIN.is_valid(data(mistake.clean))


def _is_computed(mistake: Mistake) -> bool:
    """True if the value is that of an expression, or of another operation, of which a JSON Schema knows nothing."""
    return mistake.code == "SAGA404" and ("${{" in mistake.text or "frozen" in mistake.about)


@pytest.mark.parametrize(
    "mistake",
    [mistake for mistake in MISTAKES if mistake.code in ARGUMENTS and not _is_computed(mistake)],
    ids=lambda mistake: f"{mistake.code}-{mistake.about}",
)
def test_arguments_are_checked_with_the_actions(mistake: Mistake) -> None:
    assert not WITH_ACTIONS.is_valid(data(mistake.clean))


@pytest.mark.parametrize(
    "mistake",
    [mistake for mistake in MISTAKES if mistake.code[:5] in ("SAGA2", "SAGA3")],
    ids=lambda mistake: f"{mistake.code}-{mistake.about}",
)
def test_semantic_mistakes_pass_the_schema(mistake: Mistake) -> None:
    assert PLAIN.is_valid(data(mistake.clean))
