"""`redeliver` of a trigger: read, described, compared, and in the schema of the editors."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft7Validator

from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.parser.language import language_schema
from sagas.presentation.definition_diff import compare_definitions
from sagas.presentation.explain import describe_redelivery, explain
from sagas.presentation.graph import build_saga_graph, to_mermaid
from sagas.presentation.graph_picture import to_svg
from sagas.text.exact_json import decode_json

PLAIN = "saga: order\nsteps:\n  - {id: a, uses: pass}\n"


def definition(redeliver: str = "") -> Definition:
    parsed, diagnostics = parse_text(
        f"{PLAIN}triggers: {{kafka: {{topic: baskets{redeliver}}}}}\n", "order.saga.yaml", ProjectContext({})
    )
    assert parsed is not None, diagnostics
    return parsed


@pytest.mark.parametrize(
    ("redeliver", "waits"),
    [
        ("", ()),
        (", redeliver: false", ()),
        (", redeliver: true", (10, 60, 300, 1800, 7200)),
        (", redeliver: {intervals: [1s, 2h]}", (1, 7200)),
    ],
)
def test_the_waits(redeliver: str, waits: tuple[float, ...]) -> None:
    assert definition(redeliver).triggers[0].redeliver == waits


def test_explain_and_diff_name_it() -> None:
    plain, offered = definition(), definition(", redeliver: {intervals: [1m, 10m]}")
    assert describe_redelivery(plain) is None
    assert describe_redelivery(offered) == (
        "After a compensation an event of baskets starts it again after 60 s and 10 min, unless a person has decided "
        "it; after that nothing does."
    )
    assert explain(offered).to_json()["redeliver"] == {"baskets": [60.0, 600.0]}
    [change] = compare_definitions(plain, offered).changes
    assert (change.field, change.new[0]["redeliver"]) == ("triggers", [60.0, 600.0])
    assert plain.digest == offered.digest


def test_the_graph_has_it() -> None:
    graph = build_saga_graph(definition(", redeliver: {intervals: [1m, 10m]}"))
    assert '  again_0>"↻ baskets, again after 1m, 10m"]\n' in to_mermaid(graph)
    assert to_mermaid(graph).endswith("  again_0 -.-> step_a")
    assert "↻ baskets, again after" in to_svg(graph)
    assert "again_0" not in to_mermaid(build_saga_graph(definition()))


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ("true", True),
        ('{"intervals": ["1m"]}', True),
        ('{"intervals": []}', False),
        ("{}", False),
        ("5", False),
        ('{"max_attempts": 3}', False),
    ],
)
def test_the_schema_of_the_editors(value: str, fits: bool) -> None:
    document: dict[str, Any] = {
        "saga": "order",
        "steps": [{"id": "a", "uses": "pass"}],
        "triggers": {"kafka": {"topic": "baskets", "redeliver": decode_json(value.encode())}},
    }
    assert Draft7Validator(language_schema()).is_valid(document) is fits
