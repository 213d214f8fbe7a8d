"""Optional properties and results that may be null: where their use is reported, and what guards it."""

from __future__ import annotations

import pytest

from sagas.definition.diagnostics import Diagnostic
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from tests.unit.engine.definition.mistake import ACTIONS

HEAD = """saga: shop
input:
  $defs: {address: {type: object, required: [city], properties: {city: {type: string}, zip: {type: string}}}}
  type: object
  required: [name, count, lines, to, maybe]
  properties:
    name: {type: string}
    count: {type: integer}
    note: {type: string}
    kind: {type: string, default: gift}
    nested: {type: object, properties: {deep: {type: string}}}
    filled: {type: object, default: {}, properties: {deep: {type: string, default: x}}}
    lines:
      type: array
      items: {type: object, required: [sku], properties: {sku: {type: string}, gift: {type: string}}}
    more: {type: array, items: {type: string}}
    to: {$ref: "#/$defs/address"}
    maybe: {type: [object, "null"], required: [a], properties: {a: {type: string}}}
"""
STEP = "  - {{id: a, uses: shop.reserve, with: {{sku: '${{{{ {0} }}}}'}}, compensate: shop.release{1}}}\n"
PIVOT = "  - {id: p, uses: shop.book, pivot: true}\n"


def diagnostics(text: str) -> list[Diagnostic]:
    return parse_text(HEAD + text, "a.saga.yaml", ProjectContext(ACTIONS))[1]


def codes(text: str) -> list[str]:
    return [diagnostic.code for diagnostic in diagnostics(text)]


def used(expression: str, more: str = "") -> list[str]:
    return codes("steps:\n" + STEP.format(expression.replace("'", "''"), more))


@pytest.mark.parametrize(
    "expression",
    [
        "input.note",
        "input['note']",
        "'n: ' + input.note",
        "string(size(input.nested))",
        "input.nested.deep",
        "has(input.nested) ? input.nested.deep : ''",
        "has(input.note) ? '' : input.note",
        "has(input.nested.deep) && input.note == 'x' ? '' : ''",
        "input.lines[0].gift",
        "input.lines.map(l, l.gift)[0]",
        "input.lines.exists(l, l.gift == 'x') ? '' : ''",
        "input.to.zip",
        "input.note != null ? input.note : ''",  # a missing property is not null
        "input.maybe.a",
        "has(input.maybe) ? input.maybe.a : ''",
        "input.more[0]",
        "string(size(input.more))",
    ],
)
def test_a_bare_use_is_reported(expression: str) -> None:
    assert set(used(expression)) == {"SAGA309"}


@pytest.mark.parametrize(
    "expression",
    [
        "input.name",
        "input.kind",
        "input.filled.deep",
        "input.lines[0].sku",
        "input.to.city",
        "has(input.note) ? input.note : ''",
        "!has(input.note) ? '' : input.note",
        "has(input.note) && input.note != '' ? input.note : ''",
        "!has(input.note) || input.note == '' ? '' : input.note",
        "'note' in input ? input.note : ''",
        "default(input.note, '')",
        "default(input.nested.deep, '')",
        "has(input.nested.deep) ? input.nested.deep : ''",
        "input.lines.filter(l, has(l.gift)).map(l, l.sku)[0]",
        "input.lines.map(l, has(l.gift) ? l.gift : '')[0]",
        "input.lines.map(l, has(l.gift), l.gift)[0]",
        "input.lines.exists(l, has(l.gift) && l.gift == 'x') ? '' : ''",
        "input.maybe != null ? input.maybe.a : ''",
        "default(input.maybe.a, '')",
        "has(input.more) ? input.more[0] : ''",
    ],
)
def test_a_guarded_use_is_not(expression: str) -> None:
    assert used(expression) == []


def test_the_condition_of_the_step_guards_all_its_operations() -> None:
    assert used("input.note", ", if: has(input.note)") == []
    text = (
        "  - id: a\n    uses: shop.reserve\n    with: {sku: x}\n    if: has(input.note)\n"
        "    compensate: {uses: shop.release, with: {sku: '${{ input.note }}'}}\n"
    )
    assert codes("steps:\n" + text) == []
    assert codes("steps:\n" + text.replace("has(input.note)", "input.count > 1")) == ["SAGA310"]


def test_a_requirement_guards_what_follows() -> None:
    require = "  - {id: r, uses: require, with: {that: has(input.note), message: no note}}\n"
    assert codes("steps:\n" + require + STEP.format("input.note", "")) == []


def test_a_finish_guards_what_is_below_it_by_its_condition_alone() -> None:
    finish = "  - {id: f, uses: finish, with: {when: '%s', output: \"${{ default(input.note, 1) }}\"}}\n"
    assert codes("steps:\n" + finish % "!has(input.note)" + STEP.format("input.note", "")) == []
    assert codes("steps:\n" + finish % "has(input.note)" + STEP.format("input.note", "")) == ["SAGA309"]
    bare = finish.replace("default(input.note, 1)", "input.note") % "input.count > 1"
    assert codes("steps:\n" + bare + STEP.format("input.note", "")) == ["SAGA309"] * 2


def test_the_arguments_of_an_earlier_call_guard_what_follows() -> None:
    """Without the property the call fails before its effect, so there is nothing to undo."""
    undo = (
        "steps:\n  - id: a\n    uses: shop.reserve\n    with: {sku: '${{ %s }}'}\n"
        "    compensate: {uses: shop.release, with: {sku: '${{ input.note }}'}}\n"
    )
    assert codes(undo % "input.note") == ["SAGA309"]
    assert codes(undo % 'default(input.note, "")') == ["SAGA310"]
    assert codes(undo % 'input.count > 1 ? input.note : ""') == ["SAGA309", "SAGA310"]
    after = PIVOT + "  - {id: t, uses: shop.price, effect: none, if: input.note == 'x'}\n"
    after_it = "steps:\n" + STEP.format("input.note", "") + after
    assert "SAGA310" not in codes(after_it)
    assert "SAGA310" in codes("steps:\n" + STEP.format("input.note", ", if: input.count > 1") + after)


def test_the_hint_names_what_to_write() -> None:
    (diagnostic,) = diagnostics("steps:\n" + STEP.format("input.nested.deep == ''x'' ? ''a'' : ''b''", ""))[:1]
    assert diagnostic.message == "`input.nested` is optional and has no default"
    assert diagnostic.help is not None
    assert "default(input.nested, …)" in diagnostic.help
    assert "has(input.nested)" in diagnostic.help


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('id: "a-${{ input.note }}"\nsteps:\n' + PIVOT, "SAGA309"),
        ('labels: {a: "${{ input.note }}"}\nsteps:\n' + PIVOT, "SAGA309"),
        ('output: {a: "${{ input.note }}"}\nsteps:\n' + PIVOT, "SAGA310"),
        ("steps:\n  - {id: p, uses: shop.tell, with: {sku: '${{ input.note }}'}, pivot: true}\n", "SAGA309"),
        ("steps:\n" + PIVOT + "  - {id: t, uses: shop.tell, with: {sku: '${{ input.note }}'}}\n", "SAGA310"),
        ("steps:\n" + PIVOT + "  - {id: t, uses: shop.tell, if: input.note == 'x'}\n", "SAGA310"),
        ("steps:\n" + PIVOT + "  - {id: t, uses: shop.tell, for_each: '${{ input.more }}'}\n", "SAGA310"),
        (
            "steps:\n"
            + PIVOT
            + "  - {id: t, uses: shop.tell, on_failure: continue, with: {sku: '${{ input.note }}'}}\n",
            "SAGA309",
        ),
        (
            "recovery: forward\nsteps:\n  - {id: t, uses: shop.tell, with: {sku: '${{ input.note }}'}}\n",
            "SAGA310",
        ),
        (
            "steps:\n  - {id: a, uses: shop.reserve, with: {sku: a}, compensate: shop.release,"
            " confirm: {uses: shop.tell, with: {sku: '${{ input.note }}'}}}\n",
            "SAGA310",
        ),
        (
            "steps:\n" + PIVOT + "notify: [{when: [completed], uses: shop.tell, with: {sku: '${{ input.note }}'}}]\n",
            "SAGA309",
        ),
    ],
)
def test_it_is_an_error_where_the_saga_would_park(text: str, code: str) -> None:
    assert [code for code in codes(text) if code in ("SAGA309", "SAGA310")] == [code]


@pytest.mark.parametrize(
    ("first", "second", "test"),
    [
        ("input.count > 1", "!(input.count > 1)", "input.count > 1"),
        ("input.count > 1", "input.count <= 1", "input.count > 1"),
        ("input.count > 1", "1 >= input.count", "!(input.count <= 1)"),
        ("has(input.note)", "!has(input.note)", "has(input.note)"),
        ("input.kind == 'gift'", "input.kind != 'gift'", "'gift' == input.kind"),
        (
            "input.count > 1 && has(input.note)",
            "!(input.count > 1 && has(input.note))",
            "has(input.note) && input.count > 1",
        ),
    ],
)
def test_results_of_complementary_steps_are_not_reported(first: str, second: str, test: str) -> None:
    steps = "".join(
        f'  - {{id: {id}, uses: shop.price, effect: none, if: "{condition}"}}\n'
        for id, condition in (("a", first), ("b", second))
    )
    chosen = f'output: "${{{{ {test} ? steps.a.result.amount : steps.b.result.amount }}}}"\nsteps:\n'
    assert codes(chosen + steps) == []
    wrong = chosen.replace("steps.a", "steps.x").replace("steps.b", "steps.a").replace("steps.x", "steps.b")
    assert codes(wrong + steps) == ["SAGA310", "SAGA310"]


def test_the_result_of_a_step_with_the_same_condition_is_not_reported() -> None:
    steps = (
        "steps:\n  - {id: a, uses: shop.price, effect: none, if: input.count > 1}\n"
        "  - {id: b, uses: shop.reserve, if: input.count > 1, with: {sku: '${{ string(steps.a.result.amount) }}'},"
        " compensate: shop.release}\n"
    )
    assert codes(steps) == []
    assert codes(steps.replace("reserve, if: input.count > 1", "reserve, if: input.count > 0")) == ["SAGA305"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("response.json.status == 'no'", ["SAGA314"]),
        ("${{ response.json.status == 'no' }}", ["SAGA314"]),
        ("response.json != null && response.json.a.b", ["SAGA314"]),
        ("default(response.json.status, '') == 'no'", []),
        ("has(response.json.status) && response.json.status == 'no'", []),
        ("response.status == 202 || response.text == 'no'", []),
    ],
)
def test_a_refusal_that_reads_a_field_bare(condition: str, expected: list[str]) -> None:
    call = f'{{connection: crm, path: /a, method: POST, rejected_when: "{condition}"}}'
    actual_codes = codes(
        f"steps:\n  - {{id: a, uses: http, with: {call}, compensate: {{uses: pass, with: {{result: 1}}}}}}\n"
    )
    assert [code for code in actual_codes if code == "SAGA314"] == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("string(steps.a.result.amount)", ["SAGA310"]),
        ("steps.a.result != null ? string(steps.a.result.amount) : ''", []),
    ],
)
def test_an_undo_that_always_runs_tests_the_result_for_null(expression: str, expected: list[str]) -> None:
    undo = f'{{uses: shop.release, always: true, with: {{sku: "${{{{ {expression} }}}}"}}}}'
    text = f"steps:\n  - {{id: a, uses: shop.reserve, with: {{sku: x}}, compensate: {undo}}}\n"
    assert [code for code in codes(text + PIVOT) if code in ("SAGA305", "SAGA310")] == expected


@pytest.mark.parametrize(
    ("expression", "is_reported"),
    [
        ("sum(steps.a.results.map(r, r.amount))", True),
        ("steps.a.results[0].amount", True),
        ("steps.a.results.filter(r, r != null).map(r, r.amount)", False),
        ("steps.a.results.map(r, r != null, r.amount)", False),
        ("steps.a.results.map(r, r == null ? 0 : r.amount)", False),
        ("steps.a.results.map(r, default(r.amount, 0))", False),
        ("size(steps.a.results)", False),
        ("steps.a.results", False),
    ],
)
def test_an_item_that_may_be_skipped_has_no_result(expression: str, is_reported: bool) -> None:
    output = f'output: {{a: "${{{{ {expression} }}}}"}}\nsteps:\n'
    item = "  - {id: a, uses: shop.price, effect: none, for_each: '${{ input.lines }}'%s}\n"
    after_pivot = codes(output + item % ", on_failure: continue" + PIVOT)
    assert after_pivot == (["SAGA310"] if is_reported else [])
    assert codes(output + item % "" + PIVOT) == []
    used_before = STEP.format(f"string({expression})", "").replace("id: a", "id: b")
    before = codes("steps:\n" + item % ", on_failure: continue" + used_before)
    assert ("SAGA305" in before) is is_reported
