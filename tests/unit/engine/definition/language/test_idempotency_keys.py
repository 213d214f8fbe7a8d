"""An undo that makes something of its own may name it by its own key; one that looks for the effect may not."""

from __future__ import annotations

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS

CHARGE = "method: POST, path: /charges, json: {id: '${{ step.key }}'}"
INSERT = "insert into entry values (:id)"


def codes(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))[1]]


def by_http(forward: str, undo: str) -> list[str]:
    return codes(
        f"saga: shop\nsteps:\n  - id: a\n    uses: http\n    with: {{connection: crm, {forward}}}\n"
        f"    compensate: {{uses: http, with: {{connection: crm, {undo}}}}}\n"
    )


@pytest.mark.parametrize(
    ("forward", "undo"),
    [
        (CHARGE, "method: DELETE, path: '/charges/${{ step.forward_key }}'"),
        (CHARGE, "method: POST, path: /refunds, json: {id: '${{ step.key }}', of: '${{ step.forward_key }}'}"),
        (
            CHARGE,
            "method: POST, path: /refunds, json: {id: '${{ step.key }}', of: \"${{ default(steps.a.result, '') }}\"}",
        ),
        (CHARGE, "method: POST, path: /refunds, headers: {X-Request-Id: '${{ step.key }}'}"),
        (CHARGE, "method: PUT, path: '/refunds/${{ step.key }}'"),
        (CHARGE, f"{CHARGE[:-1]}, amount: -1}}"),
        ("method: POST, path: /charges", "method: POST, path: /refunds, json: {id: '${{ step.key }}'}"),
    ],
    ids=["forward key", "both keys", "its result", "a header", "a new resource", "a counter-entry", "named by nobody"],
)
def test_an_undo_may_have_its_own_key(forward: str, undo: str) -> None:
    assert by_http(forward, undo) == []


@pytest.mark.parametrize(
    ("undo", "expected"),
    [
        ("{sql: insert into entry values (:id), params: {id: '${{ step.key }}'}}", []),
        ("{sql: delete from entry where id = :id, params: {id: '${{ step.forward_key }}'}}", []),
        ("{sql: delete from entry where id = :id, params: {id: '${{ step.key }}'}}", ["SAGA307"]),
        (
            "[{sql: insert into seen values (:id), params: {id: '${{ step.key }}'}},"
            " {sql: update stock set n = n + 1 where :id in (select id from seen), params: {id: '${{ step.key }}'}}]",
            [],
        ),
    ],
)
def test_rows(undo: str, expected: list[str]) -> None:
    text = (
        "saga: shop\nsteps:\n  - id: a\n    uses: sql\n    with:\n      connection: shop\n"
        f"      run: {{sql: {INSERT}, params: {{id: '${{{{ step.key }}}}'}}}}\n"
        f"    compensate:\n      uses: sql\n      with:\n        connection: shop\n        run: {undo}\n"
    )
    assert codes(text) == expected


@pytest.mark.parametrize("role", ["compensate", "confirm", "probe"])
def test_the_forward_key_has_a_name_in_every_operation(role: str) -> None:
    other = {"compensate": "", "confirm": "    compensate: {uses: shop.tell, with: {}}\n", "probe": "    pivot: true\n"}
    method = "GET" if role == "probe" else "POST"
    done = "\n      done: response.status == 200" if role == "probe" else ""
    text = (
        "saga: shop\nsteps:\n  - id: a\n    uses: bank.charge\n    with: {amount: '${{ step.forward_key }}'}\n"
        f"{other[role]}    {role}:\n      uses: http{done}\n"
        f"      with: {{url: 'http://a/${{{{ step.forward_key }}}}', method: {method}}}\n"
    )
    assert codes(text) == []
