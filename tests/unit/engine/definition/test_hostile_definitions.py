"""Whatever a definition file contains, it is read in bounded time, and mistakes are diagnostics."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from sagas.definition import loader
from sagas.definition.diagnostics import Report
from sagas.definition.loader import load_definitions, parse_text
from sagas.definition.parser.draft import ProjectContext, SagaDraft
from tests.helpers.sampling import examples
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS, KAFKA, SPARK
from tests.unit.engine.definition.mistakes import MISTAKES

PROJECT = ProjectContext(ACTIONS, CONNECTIONS, SPARK, KAFKA)
SECONDS = 5.0
"""Processor time for one file; the slowest below take a tenth of it."""

RETAIL = Path(__file__).parents[4] / "definitions" / "retail" / "definitions"
CORPUS = [path.read_text(encoding="utf-8") for path in sorted(RETAIL.glob("*.yaml"))]
CORPUS += [mistake.clean for mistake in MISTAKES]
NUMBERS = [
    "1e999999",
    "-1e999999",
    "9" * 5000,
    "-" + "9" * 3999,
    "9" * 400,
    "0x" + "f" * 5000,
    "0x" + "f" * 2900,
    "0o" + "7" * 2900,
    ".inf",
    "-.inf",
    ".nan",
    "!!float 1",
    "!!int 1.5",
    "1e308",
    "-1",
    "1e-400",
    "9" * 400 + "d",
    "99999999999d",
]
ODD = [
    *NUMBERS,
    "null",
    "true",
    "''",
    "[]",
    "{}",
    "*a",
    "&a x",
    "<<: *a",
    "\t",
    "\x00",
    "\ud800",
    '"\\ud800"',
    "${{",
    "}}",
    '"${{ input.a }}"',
    "${{ " + "(" * 3000,
    "'${{ " + "1+" * 30000 + "1 }}'",
    "[" * 300,
    "{a: " * 300,
    "- " * 300,
    "x" * 100_000,
    "\n---\n",
    "%YAML 1.1\n",
    "!!python/object:os.system x",
    "? [a]\n: b",
    "#" * 10_000,
    "\ufeff",
    "{$ref: '#'}",
    "{allOf: [{$ref: '#'}, {$ref: '#'}]}",
    "{pattern: '(a+)+$'}",
    "{pattern: '" + "(" * 5000 + "'}",
]


def read(text: str) -> None:
    before = time.thread_time()
    _, diagnostics = parse_text(text, "shop.saga.yaml", PROJECT)
    assert time.thread_time() - before < SECONDS
    assert [each.message for each in diagnostics if "bug in saga" in each.message] == []


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A real definition with some of its text replaced, removed or repeated."""
    text = draw(st.sampled_from(CORPUS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        new = draw(st.one_of(st.sampled_from(ODD), st.text(max_size=10), st.just(text[start:end] * 3)))
        text = text[:start] + new + text[end:]
    return text


@st.composite
def replaced_value(draw: st.DrawFn) -> str:
    """A real definition in which the value of one field is another one."""
    lines = draw(st.sampled_from(CORPUS)).splitlines() or [""]
    at = draw(st.integers(0, len(lines) - 1))
    head, colon, _ = lines[at].partition(": ")
    lines[at] = f"{head}{colon or ': '}{draw(st.sampled_from(ODD))}"
    return "\n".join(lines)


ANY_SPEED: Any = list(HealthCheck)


@examples(80, 20_000, suppress_health_check=ANY_SPEED)
@given(mutated() | replaced_value() | st.text(max_size=300))
def test_a_mutated_definition_gives_diagnostics(text: str) -> None:
    read(text)


@examples(80, 5_000, suppress_health_check=ANY_SPEED)
@given(st.binary(max_size=300))
@example(b"\xff\xfe")
@example(b"saga: \xe2\x28\xa1")
def test_random_bytes_give_diagnostics(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "shop.saga.yaml"
    path.write_bytes(content)
    definitions, diagnostics = load_definitions([path], PROJECT)
    assert not definitions
    assert diagnostics


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "text",
    [
        "saga: shop\ndeadline: {}\nsteps: [{{id: a, uses: shop.book, pivot: true}}]\n",
        "saga: shop\nlanguage: {}\nsteps: [{{id: a, uses: shop.book, pivot: true}}]\n",
        "saga: shop\ninput: {{type: integer, minimum: {}}}\nsteps: [{{id: a, uses: shop.book, pivot: true}}]\n",
        "saga: shop\ninput: {{default: {}, minLength: 1}}\nsteps: [{{id: a, uses: shop.book, pivot: true}}]\n",
        "saga: shop\noutput: {{a: {}}}\nsteps: [{{id: a, uses: shop.book, pivot: true}}]\n",
        "saga: shop\nx-a: {}\nsteps: [{{id: a, uses: shop.book, pivot: true}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: shop.book, pivot: true, timeout: {}}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: shop.book, pivot: true, retry: {{max_attempts: {}}}}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: shop.book, pivot: true, retry: {{backoff_coefficient: {}}}}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: shop.tell, for_each: [1], max_parallel: {}, effect: none}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: shop.book, pivot: true, priority: {}}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: shop.note, with: {{id: a, m: {}}}, pivot: true}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: http, with: {{url: 'http://a', done: [{}]}}}}]\n",
        "saga: shop\nsteps: [{{id: a, uses: sql, effect: none, "
        "with: {{connection: shop, run: select 1, expect_rows: {}}}}}]\n",
    ],
)
def test_a_huge_number_anywhere_is_no_traceback(text: str, number: str) -> None:
    read(text.format(number))


STATEMENTS = {
    "cases": f"update t set a = {'case when ' * 80}1{' then 1 end' * 80}",
    "parentheses": f"update t set a = {'(' * 5000}1{')' * 5000}",
    "selects": f"update t set a = {'(select ' * 300}1{')' * 300}",
    "joins": f"update t set a = 1 from {'(a join ' * 1000} b on true{') on true' * 1000}",
    "signs": f"update t set a = {'- ' * 3000}1",
    "conditions": f"update t set a = 1 where b = 1{' and c = 1' * 3000}",
    "unions": f"select 1{' union select 1' * 3000}",
    "comment": "update t set a = 1 /*",
    "string": "update t set a = 'x",
    "name": 'update t set a = "x',
    "dollars": "update t set a = $$x",
}


@pytest.mark.sampled(keep=12)
@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("compensate", ["auto", "{uses: sql, with: {connection: shop, run: select 1}}"])
@pytest.mark.parametrize("connection", ["shop", "'${{ vars.database }}'"])
def test_a_hostile_statement_is_a_diagnostic_of_its_line(statement: str, compensate: str, connection: str) -> None:
    sql = json.dumps(STATEMENTS[statement])
    read(
        f"saga: shop\nsteps:\n  - id: a\n    uses: sql\n    with: {{connection: {connection}, run: {sql}}}\n"
        f"    compensate: {compensate}\n  - {{id: b, uses: shop.book, pivot: true}}\n"
    )


def test_a_check_that_fails_ends_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(draft: SagaDraft, report: Report) -> None:
        if draft.definition.saga == "bad":
            raise KeyError("of a check")
        if draft.definition.saga == "deep":
            raise RecursionError

    for name in ("bad", "deep", "good"):
        (tmp_path / f"{name}.saga.yaml").write_text(f"saga: {name}\nsteps: [{{id: a, uses: pass}}]\n", encoding="utf-8")
    monkeypatch.setattr(loader, "check_draft", fail)
    definitions, diagnostics = load_definitions([tmp_path], PROJECT)
    assert list(definitions) == ["good"]
    assert [(Path(each.file).name, each.code, each.message) for each in diagnostics] == [
        ("bad.saga.yaml", "SAGA110", "a check of it fails with KeyError: 'of a check' (a bug in saga)"),
        ("deep.saga.yaml", "SAGA110", "a part of it is nested too deeply to be checked"),
    ]


LAUGHS = "x-a: &a0 [x]\n" + "".join(f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
MERGES = "x-a: &m {" + ", ".join(f"k{n}: 1" for n in range(2000)) + "}\n"


@pytest.mark.sampled(keep=10)
@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        MERGES + "x-b:\n" + "  - {<<: [" + ", ".join(["*m"] * 2000) + "]}\n" * 1,
        MERGES + "x-b:\n" + "  - {<<: *m}\n" * 2000,
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 100_000,
        "a: " * 50_000,
        "saga: " + "x" * 3_000_000,
        "saga: 'x\n" * 20_000,
        "---\n" * 100_000,
        "saga: a\n" * 30_000,
        "\t" * 100_000,
        "&a " * 50_000,
        "? " * 50_000,
        "#" + "x" * 3_000_000,
        "saga: shop\nsteps:\n" + "  - {id: a, uses: shop.book}\n" * 5_000,
        "saga: shop\nsteps:\n" + "".join(f"  - {{id: a{n}, uses: pass}}\n" for n in range(2_000)),
        "saga: shop\nsteps:\n" + "".join(f"  - {{id: a{n}, uses: pass}}\n" for n in range(25_000)),
        "saga: shop\noutput: '" + "${{ input.a }}" * 20_000 + "'\nsteps: [{id: a, uses: shop.book, pivot: true}]\n",
        "saga: shop\noutput: '" + "${{" * 100_000 + "'\nsteps: [{id: a, uses: shop.book, pivot: true}]\n",
        "saga: shop\noutput: '" + '${{ "' * 50_000 + "'\nsteps: [{id: a, uses: shop.book, pivot: true}]\n",
    ],
    ids=lambda text: text[:20].replace("\n", " "),
)
def test_a_large_definition_is_read_in_bounded_time(text: str) -> None:
    read(text)
