"""Parses tokens to nodes: an operator-precedence parser (Pratt, "Top down operator precedence", POPL 1973) for CEL."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from sagas.expressions import nodes
from sagas.expressions.errors import ExpressionError
from sagas.expressions.lexer import NAME, Token, tokenize
from sagas.expressions.limits import MAX_NESTING, MAX_TREE_DEPTH
from sagas.expressions.nodes import ComprehensionKind, ExpressionNode
from sagas.expressions.other_languages import text_prefix_hint, word_hint

_N = TypeVar("_N", bound=ExpressionNode)

_RELATIONS = ("==", "!=", "<", "<=", ">", ">=", "in")
_PRECEDENCE = {"?": 1, "||": 2, "&&": 3, **dict.fromkeys(_RELATIONS, 4), "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_UNARY_PRECEDENCE = 7
_COMPREHENSION_ARITIES = {"all": (2,), "exists": (2,), "exists_one": (2,), "filter": (2,), "map": (2, 3)}
RESERVED_WORDS = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


def parse_expression(source: str) -> ExpressionNode:
    """The syntax tree of an expression; raises ExpressionError with the offset of the error."""
    return _Parser(tokenize(source)).parse()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._nesting = 0

    def parse(self) -> ExpressionNode:
        if self._next.kind == "end":
            raise ExpressionError("the expression is empty", 0)
        node = self._expression()
        if self._next.kind != "end":
            raise self._unexpected("an operator or the end")
        return node

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _is(self, text: str) -> bool:
        return self._next.kind == "op" and self._next.text == text

    def _accept(self, text: str) -> bool:
        if self._is(text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        if not self._is(text):
            raise self._unexpected(f"'{text}'")
        return self._take()

    def _unexpected(self, expected: str) -> ExpressionError:
        token = self._next
        seen = token.text if token.kind == "end" else f"'{token.text}'"
        return self._of_another_language() or ExpressionError(f"expected {expected}, found {seen}", token.offset)

    def _no_field_name(self) -> ExpressionError:
        token = self._next
        if NAME.fullmatch(token.text) is None or token.kind == "end":
            return self._unexpected("a field name")
        return ExpressionError(
            f"'{token.text}' is a word of CEL; write [\"{token.text}\"] for the field of this name", token.offset
        )

    def _of_another_language(self) -> ExpressionError | None:
        """The error for a word of another language: the unexpected one, or the name right before it."""
        token, before = self._next, self._tokens[self._at - 1] if self._at else None
        if before is not None and before.kind == "name":
            joined = token.kind == "constant" and isinstance(token.value, str) and before.end == token.offset
            hint = text_prefix_hint(before.text) if joined else None
            if hint is not None:
                return ExpressionError(f"{before.text}'…' is not CEL; {hint}", before.offset)
        for word in (token, before):
            if word is not None and word.kind == "name" and (hint := word_hint(word.text)) is not None:
                return ExpressionError(f"'{word.text}' is not an operator of CEL; {hint}", word.offset)
        return None

    def _make(self, kind: type[_N], offset: int, end: int, *fields: Any) -> _N:
        node = kind(offset, end, 0, *fields)
        depth = 1 + max((child.depth for child in node.children()), default=0)
        if depth > MAX_TREE_DEPTH:
            raise ExpressionError(f"the expression has more than {MAX_TREE_DEPTH} levels; split it up", offset)
        return kind(offset, end, depth, *fields)

    def _expression(self, binds: int = 0) -> ExpressionNode:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ExpressionError(
                f"the expression is nested deeper than {MAX_NESTING} levels; split it up", self._next.offset
            )
        left = self._prefix()
        while self._next.kind == "op" and _PRECEDENCE.get(self._next.text, 0) > binds:
            left = self._infix(left, self._take().text)
        self._nesting -= 1
        return left

    def _infix(self, left: ExpressionNode, op: str) -> ExpressionNode:
        if op == "?":
            then = self._expression(_PRECEDENCE["?"])
            if not self._accept(":"):
                message = "'?' has no ':'; write condition ? a : b, or default(x, y) for a value that may be missing"
                raise self._of_another_language() or ExpressionError(message, self._next.offset)
            otherwise = self._expression()
            return self._make(nodes.Conditional, left.offset, otherwise.end, left, then, otherwise)
        right = self._expression(_PRECEDENCE[op])
        kind = nodes.Logic if op in ("&&", "||") else nodes.Binary
        return self._make(kind, left.offset, right.end, op, left, right)

    def _prefix(self) -> ExpressionNode:
        if self._is("!") or self._is("-"):
            op = self._take()
            operand = self._expression(_UNARY_PRECEDENCE)
            return self._make(nodes.Unary, op.offset, operand.end, op.text, operand)
        return self._suffixes(self._primary())

    def _primary(self) -> ExpressionNode:
        token = self._next
        if token.kind == "constant":
            self._take()
            return self._make(nodes.Constant, token.offset, token.end, token.value)
        if self._accept("("):
            node = self._expression()
            self._expect(")")
            return node
        if self._accept("["):
            items = self._items("]")
            return self._make(nodes.ListLiteral, token.offset, self._take().end, items)
        if self._accept("{"):
            return self._map(token.offset)
        leading_dot = self._accept(".")  # marks a root name in CEL; all names are root names here
        if self._next.kind != "name":
            raise self._unexpected("a name" if leading_dot else "a value")
        name = self._take()
        if name.text in RESERVED_WORDS:
            hint = word_hint(name.text)
            raise ExpressionError(
                f"'{name.text}' is a reserved word of CEL and cannot be a name{f'; {hint}' if hint else ''}",
                name.offset,
            )
        if self._accept("("):
            args = self._items(")")
            return self._call(name, args, self._take().end)
        return self._make(nodes.Identifier, token.offset, name.end, name.text)

    def _items(self, closing: str) -> tuple[ExpressionNode, ...]:
        """Comma-separated expressions up to the closing bracket, which is not consumed."""
        items: list[ExpressionNode] = []
        while not self._is(closing):
            items.append(self._expression())
            if not self._accept(","):
                break
            if self._is(closing) and closing == ")":
                raise self._unexpected("a value")
        if not self._is(closing):
            raise self._unexpected(f"',' or '{closing}'")
        return tuple(items)

    def _map(self, offset: int) -> ExpressionNode:
        entries: list[tuple[ExpressionNode, ExpressionNode]] = []
        while not self._is("}"):
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._accept(","):
                break
        return self._make(nodes.MapLiteral, offset, self._expect("}").end, tuple(entries))

    def _suffixes(self, node: ExpressionNode) -> ExpressionNode:
        while True:
            if self._accept("."):
                if self._next.kind != "name":
                    raise self._no_field_name()
                name = self._take()
                if not self._accept("("):
                    node = self._make(nodes.Select, node.offset, name.end, node, name.text)
                elif name.text in _COMPREHENSION_ARITIES:
                    node = self._comprehension(node, name)
                else:
                    args = (node, *self._items(")"))
                    node = self._call(name, args, self._take().end, node.offset)
            elif self._accept("["):
                key = self._expression()
                node = self._make(nodes.Index, node.offset, self._expect("]").end, node, key)
            else:
                return node

    def _call(
        self, name: Token, args: tuple[ExpressionNode, ...], end: int, start: int | None = None
    ) -> ExpressionNode:
        offset = name.offset if start is None else start
        if name.text == "has" and start is None:
            if len(args) != 1 or not isinstance(args[0], nodes.Select):
                raise ExpressionError("has takes one field, as in has(input.coupon)", name.offset)
            return self._make(nodes.Has, offset, end, args[0])
        if name.text == "default":
            if len(args) != 2:
                raise ExpressionError("default takes a value and its replacement: default(x, y)", name.offset)
            return self._make(nodes.Default, offset, end, *args)
        if name.text in _COMPREHENSION_ARITIES:
            raise ExpressionError(f"{name.text} is a method of a list: list.{name.text}(x, …)", name.offset)
        return self._make(nodes.FunctionCall, offset, end, name.text, args, start is not None)

    def _comprehension(self, source: ExpressionNode, name: Token) -> ExpressionNode:
        args = self._items(")")
        end = self._take().end
        if len(args) not in _COMPREHENSION_ARITIES[name.text] or not isinstance(args[0], nodes.Identifier):
            raise ExpressionError(f"{name.text} takes a name and an expression: list.{name.text}(x, …)", name.offset)
        condition = args[1] if len(args) == 3 else None
        loop = cast(ComprehensionKind, name.text)
        return self._make(nodes.Comprehension, source.offset, end, loop, source, args[0].name, condition, args[-1])
