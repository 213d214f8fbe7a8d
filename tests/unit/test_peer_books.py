"""The benchmark of the peers sees an effect that is lost, doubled or not given back."""

from __future__ import annotations

from benchmarks.no_engine import BALANCE, Payment
from benchmarks.peers.books import Mistakes, mistakes

START = {"a1": 100, "a2": 100}
PAYMENTS = [
    Payment("a1", 5, "a1", 0),
    Payment("a2", 7, "none", 0),
    Payment("a2", 7, "a2", 10 * BALANCE),
]
"""A success, and two that fail in their second step."""


def test_the_effects_of_three_steps_and_of_none_are_right() -> None:
    assert mistakes(START, {"a1": 85, "a2": 100}, PAYMENTS, [True, False, False]) == Mistakes()


def test_a_step_that_was_lost_and_one_that_was_not_given_back_do_not_hide_each_other() -> None:
    assert mistakes(START, {"a1": 90, "a2": 93}, PAYMENTS, [True, False, False]) == Mistakes(lost=5, doubled=7)


def test_a_wrong_outcome_is_a_mistake_even_if_the_balances_are_right() -> None:
    assert mistakes(START, {"a1": 85, "a2": 100}, PAYMENTS, [False, False, True]) == Mistakes(wrong=2)
