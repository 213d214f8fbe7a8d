"""Explicit needs, order, ancestors."""

from __future__ import annotations

import pytest

from sagas.definition.analysis.step_graph import CycleError, build_step_graph


def test_a_list_is_a_sequence() -> None:
    graph = build_step_graph({"a": None, "b": None, "c": None})
    assert graph.order == ("a", "b", "c")
    assert graph.needs == {"a": (), "b": ("a",), "c": ("b",)}


def test_after_a_fan_out_a_step_joins_all_branches() -> None:
    graph = build_step_graph({"a": None, "b": ["a"], "c": ["a"], "d": ["b"], "e": None})
    assert graph.needs["e"] == ("c", "d")
    assert all(graph.is_ancestor(step, "e") for step in "abcd")


def test_empty_needs_start_at_once() -> None:
    graph = build_step_graph({"a": None, "b": [], "c": None})
    assert graph.needs["b"] == ()
    assert graph.needs["c"] == ("a", "b")
    assert not graph.is_ancestor("a", "b")


def test_a_step_may_need_a_later_one() -> None:
    assert build_step_graph({"a": ["b"], "b": []}).order == ("b", "a")


def test_transitive_needs_are_removed() -> None:
    assert build_step_graph({"a": [], "b": ["a"], "c": ["a", "b", "a"]}).needs["c"] == ("b",)


def test_ties_keep_the_order_of_the_file() -> None:
    assert build_step_graph({"z": [], "a": [], "m": ["z"]}).order == ("z", "a", "m")


def test_a_cycle_is_reported() -> None:
    with pytest.raises(CycleError) as caught:
        build_step_graph({"a": [], "b": ["a", "d"], "c": ["b"], "d": ["c"]})
    assert set(caught.value.steps) == {"b", "c", "d"}


def test_an_implicit_need_can_close_a_cycle() -> None:
    with pytest.raises(CycleError):
        build_step_graph({"a": ["b"], "b": None})
