"""A correct file becomes a Definition with everything explicit."""

from __future__ import annotations

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.text.exact_json import decode_json, encode_json

TEXT = """
saga: transfer
steps:
  - id: hold
    uses: sql
    with: {connection: bank, run: "update account set held = 1"}
    compensate:
      uses: sql
      with: {connection: bank, run: "update account set held = 0"}
  - id: book
    name: Book the money
    uses: sql
    with: {connection: bank, run: "update account set booked = 1"}
    pivot: true
"""


def test_a_correct_file_becomes_a_definition() -> None:
    definition, diagnostics = parse_text(TEXT, "transfer.saga.yaml", ProjectContext())
    assert diagnostics == []
    assert definition is not None
    assert definition.saga == "transfer"
    assert [step.kind for step in definition.steps] == ["compensatable", "pivot"]
    assert definition.step("book").needs == ("hold",)
    assert definition.step("hold").do.connection == "bank"
    assert definition.digest.startswith("sha256:")


def test_a_snapshot_gives_the_same_definition_back() -> None:
    definition, _ = parse_text(TEXT, "transfer.saga.yaml", ProjectContext())
    assert definition is not None
    assert from_snapshot(decode_json(encode_json(to_snapshot(definition)))) == definition
