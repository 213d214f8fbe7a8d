"""Every folder of definitions/patterns and definitions/ported is a small, valid and explained project."""

from __future__ import annotations

import re

import pytest

from sagas.definition.input_validation import validate_input
from sagas.presentation.graph import build_saga_graph, to_mermaid
from sagas.project import Project
from sagas.settings import load_settings
from sagas.simulation import FailurePoint, Script, environment_of, failure_points, sample_input
from tests.patterns.pattern import FOLDER, PORTED, Pattern, patterns

MAX_YAML_LINES = 40
SECTIONS = ["Problem", "Forward and back", "Guarantees", "Costs", "When to use something else", "Try it"]
MAP = FOLDER.parents[1] / "docs/explanation/patterns.md"
LIST = FOLDER.parent / "README.md"

each_pattern = pytest.mark.parametrize("pattern", patterns(), ids=lambda pattern: pattern.name)
each_folder = pytest.mark.parametrize("pattern", [*patterns(), *patterns(PORTED)], ids=lambda pattern: pattern.name)


def _project(pattern: Pattern) -> Project:
    return Project(load_settings(config=pattern.folder / "saga.toml", env={}))


def _readme(pattern: Pattern) -> str:
    return (pattern.folder / "README.md").read_text(encoding="utf-8")


@each_folder
def test_its_definitions_are_valid_and_short(pattern: Pattern) -> None:
    project = _project(pattern)
    assert [str(diagnostic) for diagnostic in project.diagnostics] == []
    assert pattern.name in project.definitions
    lines = [line for path in pattern.definitions for line in path.read_text(encoding="utf-8").splitlines()]
    assert 0 < len(lines) <= MAX_YAML_LINES
    assert max(len(line) for line in lines) <= 120


@each_folder
def test_every_failure_point_is_explained(pattern: Pattern) -> None:
    project = _project(pattern)
    for name in project.definitions:
        definition, environment = project.definition(name), environment_of(project)
        cells = failure_points(
            definition, sample_input(definition, environment), Script(input_is_sample=True), environment
        )
        assert cells
        assert [cell for cell in cells if not _is_explained(cell)] == []


def _is_explained(cell: FailurePoint) -> bool:
    """Done, undone, or a person is told what to decide; nothing remains."""
    if cell.residue:
        return False
    if cell.state == "PARKED":
        return bool(cell.parked) and all(parked_step["why"] and parked_step["decisions"] for parked_step in cell.parked)
    return cell.state == "COMPLETED" or (cell.state == "COMPENSATED" and cell.reason is not None)


@each_pattern
def test_the_readme_has_its_sections_and_the_picture_of_today(pattern: Pattern) -> None:
    text = _readme(pattern)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    [picture] = re.findall(r"^```mermaid\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    drawn = to_mermaid(build_saga_graph(_project(pattern).definition(pattern.name)))
    assert picture.strip() == drawn.strip(), f"paste the output of `saga graph {pattern.name}`"


@each_folder
def test_its_play_is_complete_and_tried_by_the_readme(pattern: Pattern) -> None:
    play = pattern.play
    assert play.invariant == play.invariant.strip(".")
    project = _project(pattern)
    started = project.definition(play.start)
    for given in (*play.success, *play.failure, *play.killed):
        assert validate_input(started, given)[1] == []
    sources = {"topic", "saga", *project.settings.connections}
    assert {source for source, _ in play.reads.values()} <= sources
    assert f"saga start {play.start} " in _readme(pattern)


def test_every_pattern_is_in_the_list_and_in_the_map() -> None:
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"}
    ported = re.findall(r"^\| \[([\w-]+)\]\(ported/\1/README\.md\)", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(ported) == [pattern.name for pattern in patterns(PORTED)]
    listed = re.findall(r"^\| \[([\w-]+)\]\(patterns/\1/README\.md\)", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == folders
    assert folders <= set(re.findall(r"`([\w-]+)`", MAP.read_text(encoding="utf-8")))
