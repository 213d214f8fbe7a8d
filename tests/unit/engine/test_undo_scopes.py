"""Changes of one root saga that may follow each other on a row: sagas.protocol.undo_scopes."""

from __future__ import annotations

import pytest

from sagas.protocol import undo_scopes
from sagas.protocol.undo_scopes import Conflict, conflict

ROOT = ""
BEHIND = undo_scopes.behind_savepoint(ROOT, "hold")
NESTED = undo_scopes.of_nested(BEHIND, "s/n")
INNER = undo_scopes.of_nested(NESTED, "s/n/m")
OTHER = undo_scopes.of_nested(ROOT, "s/other")
REPLACED = undo_scopes.of_nested(ROOT, "s/r", replaced=True)
NEXT_REPLACED = undo_scopes.of_nested(ROOT, "s/q", replaced=True)
ENDED = undo_scopes.after_end(REPLACED, REPLACED)
IN_REPLACED = undo_scopes.of_nested(REPLACED, "s/r/m")
ELSEWHERE = undo_scopes.undone_elsewhere(ROOT, "s/c")


@pytest.mark.parametrize(
    ("earlier", "later", "why"),
    [
        (ROOT, BEHIND, None),
        (ROOT, INNER, None),
        (NESTED, INNER, None),
        (NESTED, NESTED, None),
        (NESTED, ROOT, "wait"),
        (INNER, NESTED, "wait"),
        (NESTED, OTHER, "wait"),
        (ROOT, REPLACED, "replaced"),
        (REPLACED, ROOT, "replaced"),
        (NESTED, IN_REPLACED, "replaced"),
        (REPLACED, IN_REPLACED, None),
        (IN_REPLACED, REPLACED, "wait"),
        (REPLACED, NEXT_REPLACED, "wait"),
        (IN_REPLACED, NEXT_REPLACED, "wait"),
        (ENDED, NEXT_REPLACED, None),
        (ENDED, ROOT, "replaced"),
        (ENDED, OTHER, "replaced"),
        (OTHER, REPLACED, "replaced"),
        (ELSEWHERE, ROOT, None),
        (ELSEWHERE, NESTED, None),
        (ROOT, ELSEWHERE, "elsewhere"),
        (BEHIND, ELSEWHERE, "elsewhere"),
    ],
)
def test_a_row_may_be_changed_again_where_both_undos_restore_it(earlier: str, later: str, why: Conflict | None) -> None:
    assert conflict(earlier, later) == why


def test_a_nested_saga_that_has_completed_belongs_to_the_scope_around_it() -> None:
    inside = undo_scopes.behind_savepoint(NESTED, "inside")
    assert undo_scopes.after_end(NESTED, NESTED) == BEHIND
    assert undo_scopes.after_end(inside, NESTED) == BEHIND
    elsewhere = undo_scopes.undone_elsewhere(inside, "x")
    assert undo_scopes.after_end(elsewhere, NESTED) == undo_scopes.undone_elsewhere(BEHIND, "x")
    assert undo_scopes.is_own(INNER, "s/n/m")
    assert undo_scopes.is_own(REPLACED, "s/r")
    assert not undo_scopes.is_own(REPLACED, "s/r/m")
