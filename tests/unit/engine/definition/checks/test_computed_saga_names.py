"""Tests of the checks of nested sagas whose name an expression chooses from a closed list."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagas.definition.loader import load_definitions
from sagas.definition.parser.draft import ProjectContext
from tests.unit.engine.definition.mistake import ACTIONS

CHILD = "saga: {name}\ninput: {{properties: {{sku: {{type: string}}}}}}\nsteps:\n  - {{id: a, uses: shop.tell{more}}}\n"
SHIPS, PAYS = CHILD.format(name="ship", more=", compensate: shop.tell"), CHILD.format(name="pay", more=", pivot: true")


def _mistakes(
    folder: Path, name: str, schema: str = "{enum: [ship, pay]}", more: str = "", input: str = "{sku: a}"
) -> list[tuple[str, str]]:
    parent = f"saga: parent\ninput: {{required: [kind], properties: {{kind: {schema}}}}}\nsteps:\n"
    parent += f"  - {{id: child, uses: saga, with: {{name: {name}, input: {input}}}{more}}}\n"
    for saga, text in {"parent": parent, "ship": SHIPS, "pay": PAYS}.items():
        folder.joinpath(f"{saga}.saga.yaml").write_text(text)
    diagnostics = load_definitions([folder], ProjectContext(ACTIONS))[1]
    return [(diagnostic.code, diagnostic.message) for diagnostic in diagnostics]


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ('"${{ input.kind }}"', "{enum: [ship, nosuch]}"),
        ('"${{ input.kind }}"', "{const: nosuch}"),
        ("\"${{ {'a': 'ship', 'b': 'nosuch'}[input.kind] }}\"", "{enum: [a, b]}"),
        ("\"${{ input.kind == 'a' ? 'ship' : 'nosuch' }}\"", "{type: string}"),
        ('"no${{ input.kind }}"', "{enum: [such]}"),
    ],
)
def test_each_name_of_the_list_is_a_saga(tmp_path: Path, name: str, schema: str) -> None:
    assert _mistakes(tmp_path, name, schema) == [("SAGA213", "there is no saga `nosuch`")]


def test_a_name_for_which_the_step_is_left_out_need_not_be_a_saga(tmp_path: Path) -> None:
    left_out = ", if: \"${{ input.kind != 'none' }}\""
    assert _mistakes(tmp_path, '"${{ input.kind }}"', "{enum: [ship, none]}", left_out) == []


def test_each_saga_of_the_list_can_be_undone(tmp_path: Path) -> None:
    because = "the nested saga `pay` cannot be undone: it has a point of no return, `a`"
    assert _mistakes(tmp_path, '"${{ input.kind }}"') == [("SAGA211", because)]
    assert _mistakes(tmp_path, '"${{ input.kind }}"', more=", pivot: true") == []


def test_each_saga_of_the_list_takes_the_input(tmp_path: Path) -> None:
    mistakes = _mistakes(tmp_path, '"${{ input.kind }}"', more=", pivot: true", input="{sku: 7}")
    assert [code for code, _ in mistakes] == ["SAGA215", "SAGA215"]
    assert [message.split(":")[0] for _, message in mistakes] == ["`child` starts `ship`", "`child` starts `pay`"]


def test_a_saga_of_the_list_with_errors(tmp_path: Path) -> None:
    tmp_path.joinpath("broken.saga.yaml").write_text(SHIPS.replace("saga: ship", "saga: broken") + "x: 1\n")
    mistakes = _mistakes(tmp_path, '"${{ input.kind }}"', "{enum: [ship, broken]}")
    assert ("SAGA217", "there is no valid definition of the nested saga `broken`") in mistakes
