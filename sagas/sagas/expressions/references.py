"""What an expression names outside itself, and whether a null there is handled."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.expressions.nodes import (
    Binary,
    Comprehension,
    Conditional,
    Constant,
    Default,
    Has,
    Logic,
    Node,
    Unary,
    path_of,
)
from sagas.expressions.static import null_tested

Path = tuple[str, ...]
_NOTHING: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of a name. ``path`` ends before an index that is no constant string: ``a.b[0].c`` gives ("a", "b").

    ``guarded``: a null in the path is handled where it is used, inside ``default()`` or ``has()``, compared with
    null, or behind such a test in ``?:``, ``&&`` or ``||``.
    """

    path: Path
    offset: int
    guarded: bool


def references(node: Node) -> tuple[Reference, ...]:
    """All references in the order of the source."""
    collector = _Collector()
    collector.visit(node, frozenset(), _NOTHING, False)
    return tuple(sorted(set(collector.found), key=lambda found: (found.offset, found.path, found.guarded)))


class _Collector:
    def __init__(self) -> None:
        self.found: list[Reference] = []

    def visit(self, node: Node, bound: frozenset[str], known: frozenset[Path], safe: bool) -> None:
        """``bound``: comprehension variables; ``known``: paths that are not null here; ``safe``: null is handled."""
        path = path_of(node)
        if path is not None:
            if path[0] not in bound:
                self.found.append(Reference(path, node.offset, safe or _implied(path, known)))
            return
        match node:
            case Has(operand=operand):
                self.visit(operand, bound, known, True)
            case Default(value=value, fallback=fallback):
                self.visit(value, bound, known, True)
                self.visit(fallback, bound, known, safe)
            case Binary() if (operand := null_tested(node)) is not None:
                self.visit(operand, bound, known, safe or path_of(operand) is not None)
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                self.visit(condition, bound, known, safe)
                self.visit(then, bound, known | not_null(condition, True), safe)
                self.visit(otherwise, bound, known | not_null(condition, False), safe)
            case Logic(op=op, left=left, right=right):
                # Both ways: an error on the left is absorbed when the right side decides.
                self.visit(left, bound, known | not_null(right, op == "&&"), safe)
                self.visit(right, bound, known | not_null(left, op == "&&"), safe)
            case Comprehension(source=source, variable=variable):
                self.visit(source, bound, known, safe)
                for part in node.children()[1:]:
                    self.visit(part, bound | {variable}, known, safe)
            case _:
                for child in node.children():
                    self.visit(child, bound, known, safe)


def not_null(condition: Node, outcome: bool) -> frozenset[Path]:
    """The paths that cannot be null when the condition had this outcome."""
    match condition:
        case Unary(op="!", operand=operand):
            return not_null(operand, not outcome)
        case Logic(op=op, left=left, right=right) if (op == "&&") is outcome:
            return not_null(left, outcome) | not_null(right, outcome)
        case Has(operand=operand) if outcome:
            return _with_prefixes(path_of(operand.operand))
        case Binary(op="==" | "!=" as op) if (operand := null_tested(condition)) is not None:
            return _with_prefixes(path_of(operand)) if (op == "!=") is outcome else _NOTHING
        case Binary(op="==" | "!=" as op) if (op == "==") is outcome:
            return _done_step(condition)
    return _NOTHING


def _done_step(test: Binary) -> frozenset[Path]:
    """``steps.x.state == "DONE"`` says that ``steps.x.result`` is there."""
    match test:
        case Binary(left=operand, right=Constant(value="DONE")) | Binary(left=Constant(value="DONE"), right=operand):
            path = path_of(operand)
            if path is not None and len(path) == 3 and path[0] == "steps" and path[2] == "state":
                return frozenset({(*path[:2], "result")})
    return _NOTHING


def _with_prefixes(path: Path | None) -> frozenset[Path]:
    return frozenset(path[:length] for length in range(1, len(path) + 1)) if path else _NOTHING


def _implied(path: Path, known: frozenset[Path]) -> bool:
    """Whether the nullable part of a path is known to be there: ``steps.x.result``, else anything behind the root."""
    if path[0] == "steps":
        return path[:3] in known
    return any(path[:length] in known for length in range(2, len(path) + 1))
