"""Mistakes of newcomers, in the words of other products or in invalid YAML: one sentence, and what to write."""

from __future__ import annotations

import pytest

from sagas.builtins.registry import BUILTINS
from sagas.definition.loader import parse_text
from sagas.definition.parser import other_names
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.parser.language import RETRY, SAGA, STEP
from tests.unit.engine.definition.mistake import ACTIONS, BOOK, CONNECTIONS, MARK, RESERVE, saga


def errors(text: str) -> list[str]:
    """The errors in short: code, message and help; the first one must be at the mark."""
    before = text[: text.index(MARK)]
    place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
    diagnostics = parse_text(text.replace(MARK, ""), "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))[1]
    assert (diagnostics[0].line, diagnostics[0].column) == place, diagnostics
    return [
        f"{diagnostic.code} {diagnostic.message}; {diagnostic.help}"
        for diagnostic in diagnostics
        if diagnostic.severity == "error"
    ]


def _sql(more: str) -> str:
    return saga(f"  - {{id: a, uses: sql, pivot: true, with: {{connection: shop, {more}}}}}\n")


def _input(property: str) -> str:
    return saga(BOOK, f"input: {{properties: {{n: {property}}}}}\n")


TABLES = ((STEP, other_names.STEP), (SAGA, other_names.SAGA), (RETRY, other_names.RETRY))
UPDATE = "update t set x = 1 where id = 1"


@pytest.mark.parametrize(
    ("text", "help"),
    [
        (saga(RESERVE + "  - {id: b, uses: shop.book, pivot: true, ⟦depends_on: [reserve]}\n"), "`needs`"),
        (saga(RESERVE + "  - {id: b, uses: shop.book, pivot: true, ⟦dependsOn: reserve}\n"), "`needs`"),
        (saga("  - {id: a, ⟦action: shop.book, pivot: true}\n"), "`uses`"),
        (saga("  - {id: a, uses: shop.reserve, ⟦args: {sku: a}, pivot: true}\n"), "`with`"),
        (saga("  - {id: a, uses: shop.tell, effect: none, ⟦when: 'true'}\n"), "`if`"),
        (saga("  - {id: a, uses: shop.tell, effect: none, ⟦foreach: [1]}\n"), "`for_each`"),
        (saga("  - {id: a, uses: shop.book, ⟦rollback: shop.tell}\n"), "`compensate`"),
        (saga("  - {id: a, uses: shop.book, ⟦compensation: shop.tell}\n"), "`compensate`"),
        (saga("  - {id: a, uses: shop.book, pivot: true, ⟦on_error: park}\n"), "`on_failure`"),
        (saga("  - {id: a, uses: shop.book, pivot: true, retry: {⟦maximumAttempts: 3}}\n"), "`max_attempts`"),
        (f"⟦name: shop\nsteps:\n{BOOK}", "`saga`"),
        (f"saga: shop\n⟦tasks:\n{BOOK}", "`steps`"),
        (saga(BOOK, "⟦parameters: {type: object}\n"), "`input`"),
        (_sql(f"⟦query: {UPDATE}"), "`run`"),
        # a value
        (saga("  - {id: a, uses: shop.book, compensate: ⟦none}\n"), "`effect: none`"),
        (saga("  - {id: a, uses: shop.book, compensate: ⟦false}\n"), "`pivot: true`"),
        (saga("  - {id: a, uses: shop.book, pivot: true, retry: ⟦3}\n"), "`retry: {max_attempts: 3}`"),
        ("saga: shop\nsteps:\n  ⟦book:\n    uses: shop.book\n", "`- id: NAME`"),
        ("saga: shop\nsteps:\n  ⟦id: book\n  uses: shop.book\n", "`- id: NAME`"),
        (saga("  - {id: a, uses: shop.book, effect: ⟦read}\n"), "write `none`"),
        (_sql(f"run: {{sql: {UPDATE}, expect_rows: ⟦one}}"), "`expect_rows: 1`"),
        (_sql(f"run: [⟦{UPDATE}]"), "`- sql: select 1`"),
        (saga("  - {id: a, uses: http, with: {connection: crm, path: ⟦'/orders/{id}'}}\n"), "${{ input.id }}"),
        (saga("  - {id: a, uses: http, with: {connection: crm, path: ⟦'/orders/:id'}}\n"), "${{ input.id }}"),
        (saga("  - {id: a, uses: http, with: {connection: crm, path: ⟦'http://b.example/c'}}\n"), "${{ input.id }}"),
        (saga("  - {id: a, uses: http, with: {url: ⟦/orders}}\n"), "`path`"),
        # the schema of the input
        *(
            (_input(f"{{type: ⟦{word}}}"), f"write {meant}")
            for word, meant in (
                ("int", "`type: integer`"),
                ("decimal", "`type: number`"),
                ("float", "`type: number`"),
                ("str", "`type: string`"),
                ("bool", "`type: boolean`"),
                ("datetime", "`type: string` and `format: date-time`"),
                ("list", "`type: array`"),
                ("dict", "`type: object`"),
            )
        ),
        (_input("{type: [string, ⟦null]}"), "'null'"),
        (_input("{type: string, required: ⟦true}"), "`required: [n]`"),
        (_input("{type: string, required: ⟦false}"), "`required`"),
        (_input("⟦string"), "write `type: string`"),
        (_input("{type: array, items: ⟦[string]}"), "`prefixItems`"),
        (_input("{type: string, sensitive: ⟦true}"), "write `x-sensitive: true`"),
        # YAML
        (saga("  - id: a\n    uses: sql\n    with:\n      rejected: sorry⟦: not enough\n"), '"sorry: not enough"'),
        ("saga: shop\nsteps:\n⟦\t- id: a\n", "indent with blanks"),
        ("saga: shop\nsteps:\n  - id: a\n⟦\tuses: shop.book\n", "indent with blanks"),
        ("saga: shop\nsteps:\n  - id: a\n   ⟦uses: shop.book\n", "same indentation"),
        ("saga: shop\nsteps:\n  - id:a\n    uses⟦: shop.book\n", "a blank after each `:`"),
        ("saga: shop\ndescription: ⟦'a\nsteps: []\n", "close it"),
        ("saga: shop\ndescription: 'it'⟦s late'\n", "write a quote inside quoted text twice"),
        ("saga: shop\ndescription: ⟦@a\n", "quote the whole value"),
        ('saga: shop\ndescription: "C:\\⟦data"\n', "single quotes"),
        ("saga: shop\nsteps:\n  - {id: a, uses: shop.book\n  - ⟦{id: b}\n", "close each bracket"),
        ("saga: shop\nsteps:\n  - id: a\n    if: ⟦!input.a\n", "quote the whole value"),
        ("saga: shop\nsteps:\n  - id: a\n    with: {sku: {⟦{ input.a }}}\n", '"${{ … }}"'),
        ("saga: shop\ndescription: a⟦\x01b\n", "remove it"),
    ],
)
def test_the_help_says_what_to_write(text: str, help: str) -> None:
    [error] = errors(text)
    assert help in error
    assert not any(word in error for word in ("token", "block end", "mapping values", "scanning"))


def test_an_address_in_a_step_belongs_in_the_settings_and_is_not_repeated() -> None:
    for step in (
        "uses: sql, pivot: true, with: {connection: ⟦'postgresql://u:pa55@h/db', run: select 1}",
        "uses: http, with: {connection: ⟦'https://u:pa55@crm.example', path: /a}",
    ):
        [error] = errors(saga(f"  - {{id: a, {step}}}\n"))
        assert "[connections.NAME]" in error
        assert "pa55" not in error
    assert "[connections.NAME]" in errors(_sql(f"run: {UPDATE}, ⟦url: 'postgresql://u:pa55@h/db'"))[0]


@pytest.mark.parametrize(
    ("keyword", "help"),
    [
        ("min: ⟦1", "write `minimum`"),
        ("max_length: ⟦1", "write `maxLength`"),
        ("regex: ⟦a", "write `pattern`"),
        ("optional: ⟦true", "lists its name under `required`"),
        ("nullable: ⟦true", "[string, 'null']"),
        ("choices: ⟦[a]", "write `enum: [a, b]`"),
        ("n: ⟦{type: string}", "under `properties`"),
    ],
)
def test_a_keyword_that_json_schema_ignores_is_a_warning(keyword: str, help: str) -> None:
    text = saga(BOOK, f"input: {{{keyword}}}\n")
    assert errors(text) == []
    [warning] = parse_text(text.replace(MARK, ""), "a.saga.yaml", ProjectContext(ACTIONS))[1]
    assert (warning.code, help in warning.help) == ("SAGA118", True)


@pytest.mark.parametrize("keyword", ["title: a", "x-order: 1", "unit: kg", "$comment: min", "examples: [1]"])
def test_annotations_are_no_mistakes(keyword: str) -> None:
    text = saga(BOOK, f"input: {{properties: {{n: {{{keyword}}}}}}}\n")
    assert parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS))[1] == []


def test_other_names_are_those_of_fields_and_never_a_field_themselves() -> None:
    names_by_table = [(set(mapping.by_name), names) for mapping, names in TABLES]
    names_by_table += [
        (set(BUILTINS[uses].parameters["properties"]), names) for uses, names in other_names.ARGUMENTS.items()
    ]
    for fields, names in names_by_table:
        others = [name for written in names.fields.values() for name in written.split()] + list(names.explained)
        assert names.fields.keys() <= fields
        assert len(others) == len(set(others))
        assert not set(others) & fields
