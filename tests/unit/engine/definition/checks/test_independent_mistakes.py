"""All mistakes of a project are reported at once, and none that only follows from another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sagas.definition.loader import load_definitions, parse_draft
from sagas.definition.parser.draft import ProjectContext

WRONG = '"${{ inputs.x }}"'
"""An expression whose root is not known, which no other mistake explains."""

FILES = {
    "no action": f"""
  - {{id: a, effect: none}}
  - {{id: b, uses: require, with: {{that: "${{{{ steps.a.result.n == 1 }}}}"}}}}
  - {{id: c, uses: require, with: {{that: {WRONG}}}}}
""",
    "no id": f"""
  - {{uses: pass}}
  - {{id: b, needs: [a], uses: require, with: {{that: "${{{{ steps.a.result.n == 1 }}}}"}}}}
  - {{id: c, uses: require, with: {{that: {WRONG}}}}}
""",
    "no step": f"""
  - nothing
  - {{id: b, uses: require, with: {{that: "${{{{ steps.a.result.n == 1 }}}}"}}}}
  - {{id: c, uses: require, with: {{that: {WRONG}}}}}
""",
    "same id": f"""
  - {{id: a, uses: pass}}
  - {{id: a, uses: pass}}
  - {{id: c, uses: require, with: {{that: {WRONG}}}}}
""",
    "unknown need": f"""
  - {{id: a, uses: http, effect: none, with: {{url: "http://x.example"}}}}
  - {{id: b, needs: [d], uses: require, with: {{that: "${{{{ steps.a.result.n == 1 }}}}"}}}}
  - {{id: c, uses: require, with: {{that: {WRONG}}}}}
""",
    "cycle": f"""
  - {{id: a, needs: [b], uses: require, with: {{that: "${{{{ steps.b.result.n == 1 }}}}"}}}}
  - {{id: b, needs: [a], uses: http, effect: none, with: {{url: "http://x.example"}}}}
  - {{id: c, uses: require, with: {{that: {WRONG}}}}}
""",
}
CODES = {
    "no action": "SAGA105",
    "no id": "SAGA105",
    "no step": "SAGA106",
    "same id": "SAGA108",
    "unknown need": "SAGA201",
    "cycle": "SAGA202",
}


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_in_one_step_hides_none_in_another(name: str) -> None:
    draft, diagnostics = parse_draft(f"saga: shop\nsteps:{FILES[name]}", "shop.saga.yaml", ProjectContext())
    assert draft is None
    errors = [(each.code, each.message) for each in diagnostics if each.severity == "error"]
    assert [code for code, _ in errors] == [CODES[name], "SAGA302"], errors
    assert errors[-1][1] == "`inputs` is not known"


NESTING = """saga: outer
steps:
  - {id: a, uses: saga, with: {name: inner, input: {n: text}}}
  - {id: c, uses: require, with: {that: "${{ inputs.x }}"}}
"""
INNER = """saga: inner
input: {type: object, properties: {n: {type: integer}}}
steps:
  - {id: a, uses: pass}
"""


def test_nested_sagas_are_checked_although_the_file_has_other_mistakes(tmp_path: Path) -> None:
    (tmp_path / "outer.saga.yaml").write_text(NESTING)
    (tmp_path / "inner.saga.yaml").write_text(INNER)
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext())
    errors = [each for each in diagnostics if each.severity == "error"]
    assert list(definitions) == ["inner"]
    assert {each.line for each in errors} == {3, 4}, errors
