"""Every mistake gets its code and position; every code has a test and a page."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sagas.actions.registry import Action, Actions
from sagas.definition.diagnostic_codes import DIAGNOSTIC_CODES
from sagas.definition.diagnostic_formats import format_diagnostics
from sagas.definition.diagnostics import Diagnostic, with_warnings_as_errors
from sagas.definition.loader import load_definitions, parse_text
from sagas.definition.parser.draft import ProjectContext
from sagas.project import Project
from sagas.settings import load_settings
from tests.unit.engine.definition.mistake import ACTIONS, Mistake
from tests.unit.engine.definition.mistakes import MISTAKES
from tests.unit.engine.definition.reference_page import ACROSS_FILES, LANGUAGE, PAGE, render, render_language


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.code}-{mistake.about.replace(' ', '_')}")
def test_a_mistake_is_reported_with_code_and_position(mistake: Mistake) -> None:
    definition, diagnostics = parse_text(mistake.clean, "a.saga.yaml", mistake.project)
    actual_diagnostics = {(diagnostic.code, diagnostic.line, diagnostic.column) for diagnostic in diagnostics}
    assert (mistake.code, *mistake.place) in actual_diagnostics, diagnostics
    assert {diagnostic.code for diagnostic in diagnostics} <= {mistake.code, *mistake.also}, diagnostics
    assert (definition is None) == any(diagnostic.severity == "error" for diagnostic in diagnostics)


def test_every_code_has_a_test_and_a_page() -> None:
    assert {mistake.code for mistake in MISTAKES} | set(ACROSS_FILES) == set(DIAGNOSTIC_CODES)
    # `python -m tests.unit.engine.definition.reference_page` writes it again.
    assert PAGE.read_text(encoding="utf-8") == render()


def test_the_language_page_has_the_tables_of_the_code() -> None:
    page = LANGUAGE.read_text(encoding="utf-8")
    assert page == render_language(page)


def test_the_example_of_the_language_page_is_valid() -> None:
    text = LANGUAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    actions = Actions([Action("ledger.book", _book, connection="bank"), Action("mail.send", _send)])
    definition, diagnostics = parse_text(text, "language.md", ProjectContext(actions, {"bank": {"kind": "sql"}}))
    assert definition is not None
    assert diagnostics == []


def test_a_command_may_be_undone_by_the_same_command() -> None:
    """The headers of a command say whether it does or undoes."""
    text = "saga: s\nsteps:\n  - {id: a, uses: kafka.request, with: {topic: t, value: 1}, compensate: kafka.request}\n"
    text += "  - {id: b, uses: pass, pivot: true}\n"
    _, diagnostics = parse_text(text, "s.saga.yaml", ProjectContext(Actions([]), {"shop": {"kind": "sql"}}))
    assert [diagnostic for diagnostic in diagnostics if diagnostic.code == "SAGA236"] == []


def _book(step: object, order: str) -> None: ...


def _send(step: object, to: str) -> None: ...


def test_several_mistakes_are_reported_at_once() -> None:
    text = "saga: shop\nsteps:\n  - {id: a, uses: shop.bok}\n  - {id: b, uses: shop.reserve, with: {sku: 1}}\n"
    _, diagnostics = parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))
    assert [diagnostic.code for diagnostic in diagnostics] == ["SAGA205", "SAGA401", "SAGA205", "SAGA404"]


@pytest.mark.parametrize(
    ("step", "help"),
    [
        ("id: write-invoice, uses: shop.tell, compensate: shop.tell", "write `write_invoice`"),
        ("id: WriteInvoice, uses: shop.tell, compensate: shop.tell", "write `writeinvoice`"),
        ("id: a, uses: SQL, compensate: shop.tell", "did you mean `sql`?"),
        ("id: a, uses: shop.tell, compensate: Auto", "did you mean `auto`?"),
        ("id: a, uses: shop.tell, Compensate: shop.tell", "did you mean `compensate`?"),
    ],
)
def test_the_help_is_the_word_to_write(step: str, help: str) -> None:
    _, diagnostics = parse_text(f"saga: shop\nsteps:\n  - {{{step}}}\n", "a.saga.yaml", ProjectContext(ACTIONS))
    assert [diagnostic.help for diagnostic in diagnostics if diagnostic.severity == "error"] == [help]


def test_did_you_mean() -> None:
    text = "saga: shop\nsteps:\n  - {id: a, uses: shop.reserv, with: {sku: a}, compensate: shop.release}\n"
    _, diagnostics = parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))
    assert diagnostics[0].help == "did you mean `shop.reserve`?"


@pytest.mark.parametrize(
    "step",
    [
        "uses: shop.move, with: {from: a, to: b}",
        "uses: shop.move, with: {from_: a, to: b}",
        "uses: shop.note, with: {id: a, from: 1, more: '${{ 1 + 1 }}'}",
    ],
)
def test_arguments_follow_the_python_signature(step: str) -> None:
    text = f"saga: shop\nsteps:\n  - {{id: a, {step}, pivot: true}}\n"
    assert parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "input.nobody",
        "input.name is missing",
        "see input.name",
        "'{{ name }}'",
        "'$${{ input.name }}'",
        "steps.rows",
        "steps.other.result",
        "vars.other",
        "'${HOME}'",
        "item.sku",
        "inputs.name",
        "'{{ input.nobody }}'",
    ],
)
def test_ordinary_text_is_no_path(text: str) -> None:
    definition = (
        "saga: shop\ninput: {type: object, required: [name], properties: {name: {type: string}}}\nsteps:\n"
        "  - {id: rows, uses: shop.book, pivot: true}\n"
        f"  - {{id: a, uses: http, with: {{connection: crm, path: /a, method: POST, json: {{x: {text}}}}}}}\n"
    )
    project = ProjectContext(ACTIONS, {"shop": {"kind": "sql"}, "crm": {"kind": "http"}}, vars=("limit",))
    codes = [diagnostic.code for diagnostic in parse_text(definition, "a.saga.yaml", project)[1]]
    assert "SAGA311" not in codes


@pytest.mark.parametrize(
    "expression",
    [
        "steps.rows.result[0].id",
        "size(steps.rows.result)",
        "steps.rows.result.map(r, r.id)",
        'steps.rows.state == "DONE"',
        'steps.rows.state in ["DONE", "SKIPPED"]',
        "steps.query.result[0].anything",
    ],
)
def test_rows_are_a_list_of_what_returning_names(expression: str) -> None:
    definition = (
        "saga: shop\nsteps:\n"
        "  - {id: query, uses: sql, effect: none, with: {connection: shop, run: select 1 as a}}\n"
        "  - {id: rows, uses: sql, pivot: true,\n"
        "     with: {connection: shop, run: insert into t values (1) returning id}}\n"
        f"output: '${{{{ {expression} }}}}'\n"
    )
    assert parse_text(definition, "a.saga.yaml", ProjectContext(ACTIONS, {"shop": {"kind": "sql"}}))[1] == []


@pytest.mark.parametrize(
    "mistake", [mistake for mistake in MISTAKES if mistake.code == "SAGA408"], ids=lambda mistake: mistake.about
)
def test_what_a_spark_step_lacks_is_said_in_its_own_words(mistake: Mistake) -> None:
    _, diagnostics = parse_text(mistake.clean, "a.saga.yaml", mistake.project)
    [help] = [diagnostic.help for diagnostic in diagnostics if diagnostic.code == "SAGA408"]
    assert help != DIAGNOSTIC_CODES["SAGA408"].help
    assert any(sign in help for sign in ("`", "{", ": ")), "it says what to write"


@pytest.mark.parametrize(
    "steps",
    [
        "  - {id: a, uses: shop.book, compensate: {uses: shop.tell, x-a: 1}}\n",
        "  - {id: a, uses: shop.book, compensate: shop.tell, confirm: {uses: shop.tell, retry: {max_attempts: 5}}}\n",
    ],
)
def test_the_help_that_cannot_work_elsewhere_is_to_remove_it(steps: str) -> None:
    diagnostics = parse_text(f"saga: shop\nsteps:\n{steps}", "a.saga.yaml", ProjectContext(ACTIONS))[1]
    assert [diagnostic.help for diagnostic in diagnostics] == ["remove it"]


def _write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.saga.yaml").write_text(text, encoding="utf-8")


def _codes(diagnostics: list[Diagnostic]) -> list[tuple[str, str, int]]:
    return [(diagnostic.code, Path(diagnostic.file).name, diagnostic.line) for diagnostic in diagnostics]


PARENT = "saga: parent\nsteps:\n  - id: part\n    uses: saga\n    with: {name: child}\n"
CHILD = "saga: child\nsteps:\n  - {id: a, uses: shop.book, pivot: true}\n"


@pytest.mark.parametrize(
    ("second", "pivot"),
    [
        ("compensate: {uses: shop.tell, confirmed: shop.tell}, confirm: shop.tell", ""),
        ("compensate: shop.tell", ""),
        ("compensate: shop.tell, confirm: shop.tell", "  - {id: c, uses: shop.book, pivot: true}\n"),
    ],
)
def test_confirmed_steps_that_can_all_be_undone_or_none(second: str, pivot: str) -> None:
    first = "compensate: {uses: shop.tell, confirmed: shop.tell}, confirm: shop.tell"
    steps = f"  - {{id: a, uses: shop.book, {first}}}\n  - {{id: b, uses: shop.book, {second}}}\n{pivot}"
    diagnostics = parse_text(f"saga: shop\nsteps:\n{steps}", "a.saga.yaml", ProjectContext(ACTIONS))[1]
    assert "SAGA216" not in [diagnostic.code for diagnostic in diagnostics]


def test_a_nested_saga_with_a_pivot_cannot_be_undone(tmp_path: Path) -> None:
    _write(tmp_path, parent=PARENT, child=CHILD)
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert _codes(diagnostics) == [("SAGA211", "parent.saga.yaml", 5)]
    assert list(definitions) == ["child"]


def test_a_nested_saga_is_no_read_that_need_not_be_undone(tmp_path: Path) -> None:
    _write(tmp_path, parent=PARENT + "    effect: none\n", child=CHILD)
    diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))[1]
    assert _codes(diagnostics) == [("SAGA207", "parent.saga.yaml", 6), ("SAGA211", "parent.saga.yaml", 5)]


@pytest.mark.parametrize(
    "child",
    [
        "saga: child\nrecovery: forward\nsteps:\n  - {id: a, uses: shop.tell}\n",
        "saga: child\nsteps:\n  - {id: a, uses: shop.tell, compensate: shop.tell, confirm: shop.tell}\n",
    ],
    ids=["forward", "confirmed"],
)
def test_other_sagas_that_cannot_be_undone(tmp_path: Path, child: str) -> None:
    _write(tmp_path, parent=PARENT, child=child)
    assert _codes(load_definitions([tmp_path], ProjectContext(ACTIONS))[1]) == [("SAGA211", "parent.saga.yaml", 5)]


@pytest.mark.parametrize(
    "more",
    ["    pivot: true\n", "    compensate: {uses: shop.tell, with: {}}\n"],
    ids=["it is the pivot", "the parent undoes it"],
)
def test_a_nested_saga_that_need_not_be_undone(tmp_path: Path, more: str) -> None:
    _write(tmp_path, parent=PARENT + more, child=CHILD)
    assert load_definitions([tmp_path], ProjectContext(ACTIONS))[1] == []


def test_an_unknown_nested_saga_is_reported(tmp_path: Path) -> None:
    _write(tmp_path, parent=PARENT.replace("child", "chidl"), child=CHILD)
    _, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert _codes(diagnostics) == [("SAGA213", "parent.saga.yaml", 5)]
    assert diagnostics[0].help == "did you mean `child`?"


@pytest.mark.parametrize("other", ["saga: other\nx: 1\nsteps: [{id: a, uses: pass}]\n", "saga: other\nsteps: [\n"])
def test_an_unknown_nested_saga_is_reported_beside_a_file_with_errors(tmp_path: Path, other: str) -> None:
    _write(tmp_path, parent=PARENT.replace("child", "chidl"), child=CHILD, other=other)
    _, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert [diagnostic.help for diagnostic in diagnostics if diagnostic.code == "SAGA213"] == ["did you mean `child`?"]
    assert "SAGA217" not in [diagnostic.code for diagnostic in diagnostics]


GRANDPARENT = PARENT.replace("parent", "grandparent").replace("child", "parent")
VALID_CHILD = "saga: child\nsteps:\n  - {id: a, uses: shop.tell, compensate: shop.tell}\n"


@pytest.mark.parametrize("child", [VALID_CHILD.replace("uses", "use"), "saga: child\nsteps: [", VALID_CHILD + "x: 1\n"])
def test_a_saga_that_nests_one_with_errors_is_not_valid(tmp_path: Path, child: str) -> None:
    """At any level; its own errors are reported as well."""
    _write(tmp_path, grandparent=GRANDPARENT, parent=PARENT, child=child, other=VALID_CHILD.replace("child", "other"))
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert list(definitions) == ["other"]
    codes = _codes(diagnostics)
    assert codes[0][1] == "child.saga.yaml"
    assert codes[-2:] == [("SAGA217", "parent.saga.yaml", 5), ("SAGA217", "grandparent.saga.yaml", 5)]


@pytest.mark.parametrize(("child", "valid"), [("shop.tell", True), ("shop.tel", False)])
def test_sagas_that_nest_each_other(tmp_path: Path, child: str, valid: bool) -> None:
    back = f"saga: child\nsteps:\n  - {{id: a, uses: {child}, compensate: shop.tell}}\n"
    back += "  - {id: again, uses: saga, with: {name: parent}, if: input.again}\n"
    _write(tmp_path, parent=PARENT, child=back)
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert sorted(definitions) == (["child", "parent"] if valid else [])
    assert [code for code, *_ in _codes(diagnostics)] == ([] if valid else ["SAGA401", "SAGA217"])


SCHEMA = """
saga: child
input:
  required: [no, kind]
  additionalProperties: false
  patternProperties: {"^x_": {type: string}}
  properties:
    no: {type: integer, minimum: 1}
    kind: {type: string, maxLength: 3, default: car}
    lines: {type: array, items: {required: [sku], properties: {sku: {type: string}, n: {exclusiveMaximum: 9}}}}
    of: {anyOf: [{required: [a]}, {properties: {b: {const: 1}}, required: [b]}]}
  if: {properties: {no: {maximum: 10}}}
  then: {properties: {kind: {const: car}}}
steps: [{id: a, uses: shop.tell, compensate: shop.tell}]
"""


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ("", ["input needs `no`"]),
        (", input: {no: 1, x_note: free}", []),
        (", input: {extra: '${{ input }}'}", ["input has the unknown field `extra`", "input needs `no`"]),
        (", input: {no: '3', kind: car}", ['input.no: "3" is not a whole number']),
        (", input: {no: 11, kind: lorry}", ['input.kind: "lorry" has more characters than 3']),
        (", input: {no: 0}", ["input.no: 0 is less than 1"]),
        (", input: {no: 5, kind: van}", ['input.kind: "van" is not car']),
        (", input: {no: '${{ input.n }}', kind: van}", []),
        (", input: '${{ input }}'", []),
        (
            ", input: {no: 11, lines: [{n: 8, sku: '${{ input.s }}'}, {n: 9}]}",
            ["input.lines[1] needs `sku`", "input.lines[1].n: 9 is not less than 9"],
        ),
        (", input: {no: 11, of: {b: '${{ input.s }}'}}", []),
        (", input: {no: 11, of: {b: 2}}", ["input.of needs `a`"]),
    ],
)
def test_the_literals_of_a_nested_sagas_input_are_compared(tmp_path: Path, given: str, messages: list[str]) -> None:
    parent = PARENT.replace("name: child", f"name: child{given}") + "    for_each: ${{ input.all }}\n"
    _write(tmp_path, parent=parent, child=SCHEMA)
    _, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert len(diagnostics) == len(messages)
    for diagnostic, message in zip(
        sorted(diagnostics, key=lambda diagnostic: diagnostic.message), messages, strict=True
    ):
        assert (diagnostic.code, diagnostic.line) == ("SAGA215", 5), diagnostic
        assert diagnostic.message == f"`part` starts `child`: {message}"


@pytest.mark.parametrize("used", ["vars.limit", "default(vars.limti, 5)", "vars", "has(vars.limti) ? 1 : 2"])
def test_a_variable_with_a_default_may_be_missing(used: str) -> None:
    text = f'saga: shop\nsteps:\n  - {{id: a, uses: shop.book, pivot: true}}\noutput: "${{{{ {used} }}}}"\n'
    assert parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS, vars=("limit",)))[1] == []


def test_a_misspelt_variable_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "saga.toml").write_text("[vars]\nlimit = 5\n")
    (tmp_path / "definitions").mkdir()
    _write(tmp_path / "definitions", a=CHILD + 'output: "${{ vars.limti }}"\n')
    [actual_diagnostic] = [
        diagnostic for diagnostic in Project(load_settings(tmp_path)).diagnostics if diagnostic.code == "SAGA308"
    ]
    assert (actual_diagnostic.line, actual_diagnostic.severity, actual_diagnostic.help) == (
        CHILD.count("\n") + 1,
        "warning",
        "did you mean `limit`?",
    )


def test_a_duplicate_saga_name_is_reported(tmp_path: Path) -> None:
    _write(tmp_path, a=CHILD, b="\n" + CHILD)
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert _codes(diagnostics) == [("SAGA111", "a.saga.yaml", 1), ("SAGA111", "b.saga.yaml", 2)]
    assert definitions == {}, "whoever adds a file that sorts first takes over no saga"


def test_of_two_definitions_only_one_of_which_is_valid_that_one_is_used(tmp_path: Path) -> None:
    _write(tmp_path, a=f"{CHILD}unknown: 1\n", b=CHILD)
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert [code for code, *_ in _codes(diagnostics)] == ["SAGA104"]
    assert len(definitions) == 1


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.saga.yaml").write_bytes(b"saga: \xff\xfe")
    _, diagnostics = load_definitions([tmp_path, tmp_path / "none.yaml"], ProjectContext(ACTIONS))
    assert _codes(diagnostics) == [("SAGA110", "a.saga.yaml", 1), ("SAGA110", "none.yaml", 1)]


def test_what_is_no_file_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.saga.yaml")
    os.mkfifo(tmp_path / "other.yaml")
    (tmp_path / "link.saga.yaml").symlink_to("nowhere")
    _, diagnostics = load_definitions([tmp_path, Path("/dev/zero"), "x" * 5_000], ProjectContext(ACTIONS))
    assert [diagnostic.message.removeprefix("the file cannot be read: ") for diagnostic in diagnostics] == [
        "it is a pipe or a device, not a file",
        "it is a symbolic link to nowhere, which does not exist",
        "it is a pipe or a device, not a file",
        "File name too long",
    ]


def test_other_yaml_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    (tmp_path / "plain.yaml").write_text(CHILD)
    definitions, diagnostics = load_definitions([tmp_path], ProjectContext(ACTIONS))
    assert (list(definitions), diagnostics) == (["child"], [])


ONE = Diagnostic("a:b.yaml", 3, 7, "SAGA103", "warning", "100% late", "Move it,\nplease.")


def test_text_format() -> None:
    assert format_diagnostics([ONE]).startswith("a:b.yaml:3:7 SAGA103 warning 100% late\n    Move it,")


def test_json_format() -> None:
    assert json.loads(format_diagnostics([ONE], "json")) == [ONE.to_json()]


def test_github_format_escapes() -> None:
    assert format_diagnostics([ONE], "github") == (
        "::warning file=a%3Ab.yaml,line=3,col=7,title=SAGA103::100%25 late%0AMove it,%0Aplease."
    )


def test_sarif_format() -> None:
    run = json.loads(format_diagnostics([ONE], "sarif"))["runs"][0]
    assert run["tool"]["driver"]["rules"][0]["id"] == run["results"][0]["ruleId"] == "SAGA103"
    assert run["results"][0]["level"] == "warning"
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 3, "startColumn": 7}


def test_sarif_names_a_file_by_its_uri() -> None:
    diagnostic = replace(ONE, file="definitions/a b#1%\n.saga.yaml")
    [result] = json.loads(format_diagnostics([diagnostic], "sarif"))["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert location == {"uri": "definitions/a%20b%231%25%0A.saga.yaml"}


def test_strict_makes_errors_of_warnings() -> None:
    assert [diagnostic.severity for diagnostic in with_warnings_as_errors([ONE])] == ["error"]
