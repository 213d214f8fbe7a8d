"""The graph: the way back passes through what cannot be undone; a run's state shows; nothing overlaps."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as xml

import pytest

from sagas.definition.model import Definition, Locks, Savepoint
from sagas.presentation.graph import build_saga_graph, to_mermaid
from sagas.presentation.graph_picture import to_svg
from sagas.protocol.saga_view import SagaView
from sagas.simulation import Script, simulate
from tests.unit.engine.machine.driver import op, saga, step

DIAMOND = saga(
    step("end"),
    step("left", needs=("end",)),
    step("right", needs=("end",), kind="read", compensate=None),
    step("join", needs=("left", "right")),
    step("p", kind="pivot", needs=("join",), name='Say "yes" & <go>'),
    line=False,
)


def test_compensation_edges_pass_through_reads() -> None:
    graph = build_saga_graph(DIAMOND)
    assert graph.back == (("left", "end"), ("join", "left"), ("join", "end"))
    assert ("end", "right") in graph.forward


def test_names_are_escaped_for_mermaid() -> None:
    text = to_mermaid(build_saga_graph(DIAMOND))
    assert 'step_end["<b>end</b>' in text
    assert "Say #34;yes#34; #38; #60;go#62;" in text
    assert "point of no return" in text


def test_a_run_colours_its_steps() -> None:
    definition = saga(step("a", for_each="${{ input.items }}"), step("b"), step("p", kind="pivot"))
    run = simulate(definition, {"items": [1, 2]}, Script({"b": "rejected", "a#0/undo": "rejected"}))
    graph = build_saga_graph(definition, SagaView.from_json(run.document))
    assert {node.step.id: node.group for node in graph.nodes} == {"a": "parked", "b": "failed", "p": "pending"}
    assert graph.nodes[0].note == "1 PARKED, 1 COMPENSATED"
    assert "class step_a parked" in to_mermaid(graph)
    assert "1 PARKED, 1 COMPENSATED" in to_svg(graph)


PATTERNS = saga(
    step("a.check", kind="read", compensate=None, name="check a"),
    step("a", needs=("a.check",), confirm=op("confirm.a")),
    step("b", needs=("a",), savepoint=Savepoint(attempts=4, wait=60.0)),
    step("c", needs=("b",), confirm=op("confirm.c")),
    step("p", kind="pivot", needs=("c",)),
    step("z", kind="retriable", compensate=None, needs=("p",), confirm=op("confirm.z")),
    line=False,
    locks=Locks(["k-${{ input.n }}", "l", "m", "n"], "shop", wait=0, until="commit"),
)


def test_confirms_locks_savepoints_and_checks_are_drawn() -> None:
    graph = build_saga_graph(PATTERNS)
    assert [node.confirm for node in graph.nodes] == [None, "confirm.a", None, "confirm.c", None, "confirm.z"]
    assert graph.confirms == (("a", "c"),), "the last one follows its own step"
    assert graph.locked == ("a.check",)
    lines = to_mermaid(graph).splitlines()
    assert '  check_a[/"<b>check a</b><br/>act.a.check"/]' in lines
    assert '  step_b[["<b>b</b><br/>act.b<br/>savepoint, 4 runs, wait 1m"]]' in lines
    assert '  confirm_a(["✓ confirm.a"])' in lines
    assert {"  step_a === confirm_a", "  confirm_a ==> confirm_c", "  locks --> check_a"} <= set(lines)
    [locks] = [line for line in lines if line.startswith("  locks[")]
    assert "l, m and 1 more<br/>no wait, until the commit point" in locks
    drawn = to_svg(graph)
    for words in ("✓ confirm.c", "savepoint, 4 runs, wait 1m", "lock k-${{ input.n }}, l, m and 1 more"):
        assert words in drawn


def test_locks_from_a_later_step_are_drawn_before_it() -> None:
    definition = saga(step("a"), step("b"), locks=Locks("${{ steps.a.result }}", "shop", from_="b"))
    assert build_saga_graph(definition).locked == ("b",)


@pytest.mark.parametrize("downward", [False, True], ids=["wide", "narrow"])
@pytest.mark.parametrize("definition", [DIAMOND, PATTERNS], ids=["diamond", "patterns"])
def test_boxes_do_not_overlap_and_lie_inside_the_picture(definition: Definition, downward: bool) -> None:
    picture = xml.fromstring(to_svg(build_saga_graph(definition), downward=downward))
    whole = [float(part) for part in picture.attrib["viewBox"].split()]
    boxes = [
        tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        for rect in picture.iter("{http://www.w3.org/2000/svg}rect")
        if rect.attrib["class"].partition(" ")[0] in ("step", "undo", "confirm")
    ]
    assert len(boxes) == (8 if definition is DIAMOND else 12)
    for x, y, width, height in boxes:
        assert 0 <= x <= whole[2] - width
        assert 0 <= y <= whole[3] - height
    for first, second in itertools.combinations(boxes, 2):
        beside = first[0] + first[2] <= second[0] or second[0] + second[2] <= first[0]
        below = first[1] + first[3] <= second[1] or second[1] + second[3] <= first[1]
        assert beside or below
