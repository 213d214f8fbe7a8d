"""Operations of a `kafka.request` step, and its simulation."""

from __future__ import annotations

from saga_workers.trigger.replies import reply_topics
from sagas.builtins.messaging import REPLY_PROBE, REQUEST
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import KafkaResources, ProjectContext
from sagas.presentation.explain import explain_guarantee
from sagas.simulation import failure_points

TRIP = """
saga: trip
{defaults}
steps:
  - id: reserve
    uses: kafka.request
    with: {{topic: hotel, value: 1}}
    compensate: [{{uses: http, with: {{method: POST, url: 'http://hotel.example'}}}}, kafka.request]
  - id: book
    uses: sql
    with: {{connection: shop, run: select 1}}
    compensate: {{uses: kafka.request, with: {{topic: books, value: 1, reply_topic: book-replies}}}}
  - {{id: pay, uses: kafka.request, with: {{topic: bank, value: 1}}, pivot: true}}
"""


def trip(defaults: str = "") -> Definition:
    text = TRIP.format(defaults=defaults)
    definition, diagnostics = parse_text(
        text, "trip.saga.yaml", ProjectContext({}, {"shop": {"kind": "sql"}}, kafka=KafkaResources("shop"))
    )
    assert definition is not None, diagnostics
    return definition


def test_a_reply_has_five_minutes_and_other_operations_the_usual_time() -> None:
    reserve, book, _ = trip().steps
    assert reserve.do.timeout == 300
    assert reserve.compensate is not None
    assert [(alternate.uses, alternate.timeout) for alternate in reserve.compensate.alternates] == [
        ("http", 30),
        (REQUEST, 300),
    ]
    assert book.do.timeout == 30
    assert book.compensate is not None
    assert book.compensate.alternates[0].timeout == 300


def test_explicit_fields_override_defaults() -> None:
    reserve = trip("defaults: {timeout: 2m, heartbeat: 10s}").steps[0]
    assert reserve.do.timeout == 120
    assert reserve.do.heartbeat is None, "nobody beats for an attempt that no worker holds"


def test_a_reply_probe_seals_unsent_requests() -> None:
    reserve, book, pay = trip().steps
    for step in (reserve, pay):
        assert step.probe is not None
        assert (step.probe.operation.uses, step.probe.operation.seals) == (REPLY_PROBE, True)
    assert book.probe is None
    assert reserve.guarantee == "participant-keyed"
    assert "written once" in explain_guarantee(reserve)


def test_reply_topics_are_collected() -> None:
    assert reply_topics({"trip": trip()}, "acme") == ["acme-replies", "book-replies"]
    assert reply_topics({}, "acme") == []


def test_an_unknown_request_is_undone_and_an_unknown_pivot_parks() -> None:
    cells = {(cell.step, cell.fault): cell for cell in failure_points(trip(), None)}
    assert cells["reserve", "unknown"].state == "COMPENSATED"
    assert cells["reserve", "unknown"].undone == ["reserve"]
    assert cells["pay", "unknown"].state == "PARKED"
    assert not any(cell.residue for cell in cells.values())
