"""A schedule in what is told about a definition."""

from __future__ import annotations

from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from sagas.presentation.definition_diff import compare_definitions
from sagas.presentation.explain import describe_schedule, explain
from sagas.presentation.graph import build_saga_graph, to_mermaid
from sagas.presentation.graph_picture import to_svg

PLAIN = "saga: close\nsteps:\n  - {id: a, uses: pass}\n"


def definition(schedule: str | None = None) -> Definition:
    text = PLAIN if schedule is None else f"{PLAIN}triggers: {{schedule: {schedule}}}\n"
    parsed, diagnostics = parse_text(text, "close.saga.yaml", ProjectContext({}))
    assert parsed is not None, diagnostics
    return parsed


NIGHTLY = definition("{cron: 30 3 * * *, timezone: Europe/Berlin, overlap: buffer_one, jitter: 5m}")


def test_explain_says_when_a_schedule_starts_the_saga() -> None:
    assert describe_schedule(NIGHTLY) == (
        "A schedule starts it at `30 3 * * *` in Europe/Berlin, up to 5 min later, once for each time; while the saga "
        "of an earlier time runs, the first of the further times waits (buffer_one)."
    )
    assert explain(NIGHTLY).to_json()["schedule"]["timezone"] == "Europe/Berlin"
    assert explain(definition()).to_json()["schedule"] is None


def test_the_graph_has_the_schedule() -> None:
    graph = build_saga_graph(NIGHTLY)
    assert 'schedule>"⏰ 30 3 * * *, Europe/Berlin"]' in to_mermaid(graph)
    assert "schedule --> step_a" in to_mermaid(graph)
    assert "⏰ 30 3 * * *, Europe/Berlin" in to_svg(graph)
    assert "schedule" not in to_mermaid(build_saga_graph(definition()))


def test_a_changed_schedule_is_a_difference_that_leaves_the_digest() -> None:
    later = definition("{cron: 45 3 * * *, timezone: Europe/Berlin}")
    assert later.digest == NIGHTLY.digest == definition().digest
    [change] = compare_definitions(NIGHTLY, later).changes
    assert (change.field, change.new["cron"]) == ("schedule", "45 3 * * *")
    [removed] = compare_definitions(NIGHTLY, definition()).changes
    assert "until `saga setup` has removed it" in (removed.meaning or "")
