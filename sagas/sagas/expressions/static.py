"""What the source alone tells: is a value text, is a call possible."""

from __future__ import annotations

from sagas.expressions.errors import did_you_mean
from sagas.expressions.functions import FUNCTIONS, REFUSED, TEXT_FUNCTIONS, Function
from sagas.expressions.nodes import Binary, Call, Conditional, Constant, Default, Node


def is_text(node: Node) -> bool:
    """True where the source alone shows that the value is text."""
    match node:
        case Constant(value=str()):
            return True
        case Call(name=name):
            return name in TEXT_FUNCTIONS
        case Binary(op="+", left=left, right=right):
            return is_text(left) or is_text(right)
        case Conditional(then=then, otherwise=otherwise):
            return is_text(then) and is_text(otherwise)
        case Default(fallback=fallback):
            return is_text(fallback)
    return False


def call_problem(node: Call) -> str | None:
    """What is wrong with a call before it is made: its name, its form or the number of its arguments."""
    function = FUNCTIONS.get(node.name)
    if function is None:
        if node.name in REFUSED:
            return REFUSED[node.name]
        macros = ("has", "default", "all", "exists", "exists_one", "map", "filter")
        return f"there is no function '{node.name}'{did_you_mean(node.name, [*FUNCTIONS, *macros])}"
    if function.style == "method" and not node.method:
        return f"{node.name} is written behind a value: x.{node.name}(…)"
    if function.style == "function" and node.method:
        return f"{node.name} is written before its value: {node.name}(x)"
    return _arity_problem(node, function)


def _arity_problem(node: Call, function: Function) -> str | None:
    behind = 1 if node.method else 0
    given, least, most = len(node.args) - behind, function.least - behind, function.most - behind
    if least <= given <= most:
        return None
    wanted = str(least) if least == most else f"{least} to {most}"
    return f"{node.name} takes {wanted} argument{'' if wanted == '1' else 's'}, not {given}"


def null_tested(node: Binary) -> Node | None:
    """``x`` of ``x == null`` and ``null != x``."""
    match node:
        case Binary(op="==" | "!=", left=operand, right=Constant(value=None)):
            return operand
        case Binary(op="==" | "!=", left=Constant(value=None), right=operand):
            return operand
    return None
