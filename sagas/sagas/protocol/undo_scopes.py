"""Undo scopes: the parts of a root saga whose steps are undone together, so that an undo may leave rows to another one.

A nested saga that may be undone alone is a scope of its own until it has completed, and belongs to the scope around it
from then on, as in closed nested transactions (Moss, "Nested Transactions", 1985). Until then only steps in it may
change its rows again: another change would stay when it is undone.

A scope is written as its elements, joined by `|`. The first one is that of the root saga and has no name; an element
has the name of a nested saga, and `#` with a savepoint before the step. `!` before the name says that the nested saga
is undone by the `compensate` of its step, and stays without the name when it has ended. `~` says that the step is
undone on another connection.
"""

from __future__ import annotations

import base64
import hashlib
import re
from itertools import takewhile
from typing import Literal

Conflict = Literal["wait", "replaced", "elsewhere"]

_REPLACED = "!"

_MARKS = 22
"""Characters of a name or a mark: 128 bits, so that scopes are short however long the ids are."""


def behind_savepoint(scope: str, step: str) -> str:
    return f"{scope}#{_short(step)}"


def undone_elsewhere(scope: str, entry: str) -> str:
    return f"{scope}~{_short(entry)}"


def of_nested(scope: str, saga_id: str, *, replaced: bool = False) -> str:
    """The undo scope of a nested saga, whose parent has ``scope``. ``replaced``: the parent's step has a `compensate`,
    which runs instead of the nested saga's own undo.
    """
    return f"{scope}|{_REPLACED if replaced else ''}{_short(saga_id)}"


def is_own(scope: str, saga_id: str) -> bool:
    """True if the scope is that of this nested saga, and ends with it."""
    return scope.rpartition("|")[2].removeprefix(_REPLACED) == _short(saga_id)


def after_end(scope: str, ended: str) -> str:
    """A scope in the scope ``ended`` of a nested saga that has completed."""
    outer, _, name = ended.rpartition("|")
    inner = scope[len(ended) :]
    if inner.startswith("#"):
        inner = inner[1 + _MARKS :]
    return f"{outer}|{_REPLACED}{inner}" if name.startswith(_REPLACED) else outer + inner


def conflict(earlier: str, later: str) -> Conflict | None:
    """Why a step in the scope ``later`` may not change a row that one in ``earlier`` has changed, and may yet undo.

    ``wait``: not until the nested saga of the earlier one has ended. ``replaced``: one of them is in a nested saga
    whose undo restores no rows. ``elsewhere``: that holds for the undo of the later one.
    """
    names, later_names = _names(earlier), _names(later)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, later_names, strict=False)))
    outside, inside = names[common:], later_names[common:]
    if outside and inside and outside[0].startswith(_REPLACED) and inside[0].startswith(_REPLACED):
        # Once the earlier one has completed, a statement of the author undoes it, which needs no images.
        return None if all(name == _REPLACED for name in outside) else "wait"
    if any(name.startswith(_REPLACED) for name in (*outside, *inside)):
        return "replaced"
    if outside:
        return "wait"
    return "elsewhere" if "~" in later.rpartition("|")[2] and later != earlier else None


def _names(scope: str) -> list[str]:
    return [re.split("[#~]", element, maxsplit=1)[0] for element in scope.split("|")]


def _short(id: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(id.encode()).digest()).decode()[:_MARKS]
