"""Static analysis of an expression: string results, invalid calls, and references with their null handling."""

from __future__ import annotations

from dataclasses import dataclass

from sagas.expressions import nodes
from sagas.expressions.errors import suggestion
from sagas.expressions.functions import FUNCTIONS, STRING_FUNCTIONS, Function
from sagas.expressions.nodes import ExpressionNode, path_of
from sagas.expressions.other_languages import FUNCTIONS as OTHER_FUNCTIONS


def is_text(node: ExpressionNode) -> bool:
    """True if the source alone shows that the value is a string."""
    match node:
        case nodes.Constant(value=str()):
            return True
        case nodes.FunctionCall(name=name):
            return name in STRING_FUNCTIONS
        case nodes.Binary(op="+", left=left, right=right):
            return is_text(left) or is_text(right)
        case nodes.Conditional(then=then, otherwise=otherwise):
            return is_text(then) and is_text(otherwise)
        case nodes.Default(fallback=fallback):
            return is_text(fallback)
    return False


def call_error(node: nodes.FunctionCall) -> str | None:
    """The error in a call's name, its form (``x.f()`` or ``f(x)``) or its number of arguments; None if it is valid."""
    function = FUNCTIONS.get(node.name)
    if function is None:
        if node.name.lower() in OTHER_FUNCTIONS:
            return f"there is no function '{node.name}'; {OTHER_FUNCTIONS[node.name.lower()]}"
        macros = ("has", "default", "all", "exists", "exists_one", "map", "filter")
        return f"there is no function '{node.name}'{suggestion(node.name, [*FUNCTIONS, *macros])}"
    if function.style == "method" and not node.method:
        return f"{node.name} is written after a value: x.{node.name}(…)"
    if function.style == "function" and node.method:
        return f"{node.name} is written before its value: {node.name}(x)"
    return _arity_error(node, function)


def _arity_error(node: nodes.FunctionCall, function: Function) -> str | None:
    behind = 1 if node.method else 0
    given, least, most = len(node.args) - behind, function.min_arguments - behind, function.max_arguments - behind
    if least <= given <= most:
        return None
    expected = str(least) if least == most else f"{least} to {most}"
    return f"{node.name} takes {expected} argument{'' if expected == '1' else 's'}, not {given}"


def null_test_operand(node: nodes.Binary) -> ExpressionNode | None:
    """``x`` of ``x == null`` and ``null != x``."""
    match node:
        case nodes.Binary(op="==" | "!=", left=operand, right=nodes.Constant(value=None)):
            return operand
        case nodes.Binary(op="==" | "!=", left=nodes.Constant(value=None), right=operand):
            return operand
    return None


NamePath = tuple[str, ...]
_NO_PATHS: frozenset[NamePath] = frozenset()


@dataclass(frozen=True, slots=True)
class Reference:
    """One use of a name. ``path`` ends before an index that is not a constant string: ``a.b[0].c`` gives ("a", "b").

    ``guarded``: a null in the path is handled, because the reference is inside ``default()`` or ``has()``, is compared
    with null, or follows such a test in ``?:``, ``&&`` or ``||``.
    """

    path: NamePath
    offset: int
    guarded: bool


def find_references(node: ExpressionNode) -> tuple[Reference, ...]:
    """All references, in source order."""
    collector = _Collector()
    collector.visit(node, frozenset(), _NO_PATHS, False)
    return tuple(
        sorted(set(collector.found), key=lambda reference: (reference.offset, reference.path, reference.guarded))
    )


class _Collector:
    def __init__(self) -> None:
        self.found: list[Reference] = []

    def visit(self, node: ExpressionNode, bound: frozenset[str], non_null: frozenset[NamePath], safe: bool) -> None:
        """``bound``: comprehension variables; ``non_null``: paths that are not null here; ``safe``: null is handled."""
        path = path_of(node)
        if path is not None:
            if path[0] not in bound:
                self.found.append(Reference(path, node.offset, safe or _is_known_non_null(path, non_null)))
            return
        match node:
            case nodes.Has(operand=operand):
                self.visit(operand, bound, non_null, True)
            case nodes.Default(value=value, fallback=fallback):
                self.visit(value, bound, non_null, True)
                self.visit(fallback, bound, non_null, safe)
            case nodes.Binary() if (operand := null_test_operand(node)) is not None:
                self.visit(operand, bound, non_null, safe or path_of(operand) is not None)
            case nodes.Conditional(condition=condition, then=then, otherwise=otherwise):
                self.visit(condition, bound, non_null, safe)
                self.visit(then, bound, non_null | non_null_paths(condition, True), safe)
                self.visit(otherwise, bound, non_null | non_null_paths(condition, False), safe)
            case nodes.Logic(op=op, left=left, right=right):
                # In both directions, because an error on the left is absorbed if the right side decides.
                self.visit(left, bound, non_null | non_null_paths(right, op == "&&"), safe)
                self.visit(right, bound, non_null | non_null_paths(left, op == "&&"), safe)
            case nodes.Comprehension(source=source, variable=variable):
                self.visit(source, bound, non_null, safe)
                for part in node.children()[1:]:
                    self.visit(part, bound | {variable}, non_null, safe)
            case _:
                for child in node.children():
                    self.visit(child, bound, non_null, safe)


def non_null_paths(condition: ExpressionNode, outcome: bool) -> frozenset[NamePath]:
    """The paths that cannot be null if the condition has this outcome."""
    match condition:
        case nodes.Unary(op="!", operand=operand):
            return non_null_paths(operand, not outcome)
        case nodes.Logic(op=op, left=left, right=right) if (op == "&&") is outcome:
            return non_null_paths(left, outcome) | non_null_paths(right, outcome)
        case nodes.Has(operand=operand) if outcome:
            return _with_prefixes(path_of(operand.operand))
        case nodes.Binary(op="==" | "!=" as op) if (operand := null_test_operand(condition)) is not None:
            return _with_prefixes(path_of(operand)) if (op == "!=") is outcome else _NO_PATHS
        case nodes.Binary(op="==" | "!=" as op) if (op == "==") is outcome:
            return _done_step_paths(condition)
    return _NO_PATHS


def _done_step_paths(test: nodes.Binary) -> frozenset[NamePath]:
    """``steps.x.state == "DONE"`` implies that ``steps.x.result`` is present."""
    match test:
        case (
            nodes.Binary(left=operand, right=nodes.Constant(value="DONE"))
            | nodes.Binary(left=nodes.Constant(value="DONE"), right=operand)
        ):
            path = path_of(operand)
            if path is not None and len(path) == 3 and path[0] == "steps" and path[2] == "state":
                return frozenset({(*path[:2], "result")})
    return _NO_PATHS


def _with_prefixes(path: NamePath | None) -> frozenset[NamePath]:
    return frozenset(path[:length] for length in range(1, len(path) + 1)) if path else _NO_PATHS


def _is_known_non_null(path: NamePath, non_null: frozenset[NamePath]) -> bool:
    """Return whether the nullable part of a path is known to be present: ``steps.x.result``, else anything below the
    root.
    """
    if path[0] == "steps":
        return path[:3] in non_null
    return any(path[:length] in non_null for length in range(2, len(path) + 1))
