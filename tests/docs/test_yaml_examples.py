"""The definitions that pages show are valid as they stand, with no warning that the page does not explain."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from tests.docs.test_pages import PAGES, ROOT

BLOCK = re.compile(r"^( *)```yaml[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
STEPS = "steps:\n  - {id: reserve, uses: pass}\n  - {id: paid, uses: wait, with: {signal: paid, timeout: 1m}}\n"
PIVOT = "  - {id: paid, uses: pass, pivot: true}\n"
OF_A_SAGA = ("triggers", "input", "defaults", "locks", "notify", "labels")
"""The fields of a saga with which an excerpt begins."""

NOT_CHECKED = {"SAGA401"}
"""A page does not show the functions of its project."""

CONNECTIONS: dict[str, dict[str, Any]] = {
    **{name: {"kind": "sql"} for name in ("shop", "bank", "bank_a", "bank_b", "warehouse")},
    **{name: {"kind": "http", "idempotent": True} for name in ("crm", "trains", "shopfront")},
}

EXAMPLES_OF_MISTAKES = ROOT / "docs/reference/diagnostics.md"

BEFORE = {
    ("spark-jobs.md", 0): "  - {id: count, uses: sql, effect: none, with: {connection: shop, run: select 1 as n}}\n"
}
"""Steps to which an excerpt refers."""


@dataclass(frozen=True)
class Example:
    page: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.number}"


def examples() -> Iterator[Example]:
    """The blocks that are sagas, steps, or fields of a saga, each completed to a definition."""
    for page in PAGES:
        if page == EXAMPLES_OF_MISTAKES:
            continue
        for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            text = textwrap.dedent(block[1]).replace("[…]", "[{id: one, uses: pass}]")
            if (completed := complete(text, BEFORE.get((page.name, number), ""))) is not None:
                yield Example(page, number, completed)


def complete(text: str, before: str) -> str | None:
    """The definition around an excerpt; None for another one, as the options of a step are."""
    if re.search("^ *…$", text, re.MULTILINE):
        return None
    content = yaml.safe_load(text)
    if isinstance(content, list):
        if not all(isinstance(item, dict) and {"id", "uses"} <= item.keys() for item in content):
            return None
        pivot = PIVOT if "after the pivot" in text else ""
        return f"saga: example\nsteps:\n{before}{pivot}{textwrap.indent(text, '  ')}"
    if not isinstance(content, dict):
        return None
    fields: dict[str, Any] = content
    if "steps" in fields:
        if not all("uses" in step for step in fields["steps"]):
            return None
        return text if "saga" in fields else f"saga: example\n{text}"
    return f"saga: example\n{text}{STEPS}" if next(iter(fields)) in OF_A_SAGA else None


EXAMPLES = list(examples())


def test_the_pages_have_examples() -> None:
    assert len(EXAMPLES) > 25


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_is_valid(example: Example) -> None:
    bank = CONNECTIONS["crm" if example.page.name == "call-http.md" else "bank"]
    context = ProjectContext(connections={**CONNECTIONS, "bank": bank}, locks="shop", vars=(), receives_callbacks=True)
    _, diagnostics = parse_text(example.text, "example.saga.yaml", context)
    page = example.page.read_text(encoding="utf-8")
    checked = [each for each in diagnostics if each.code not in NOT_CHECKED]
    assert [f"{each.code} line {each.line}: {each.message}" for each in checked if each.code not in page] == []
    assert [each.message for each in checked if each.severity == "error"] == []
