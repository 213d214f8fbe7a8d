"""Checks the SQL of all operations in the dialect of their connections, and that parameters match placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sagas.builtins.spark import RECONCILE, SPARK
from sagas.builtins.sql_places import Path, SqlPlace, parse_at, possible_dialects, sql_places
from sagas.definition.diagnostics import Positioned, Report
from sagas.definition.parser.draft import OperationDraft, ProjectContext, SagaDraft
from sagas.definition.parser.yaml_nodes import MAX_COUNTED, YamlNode
from sagas.sql_text.dialects import Dialect
from sagas.sql_text.parsed import (
    ParametersDiffer,
    ParsedSql,
    SwallowedText,
    refuse_comment,
    shared_differences,
)
from sagas.sql_text.sql_statements import constant_orders, written_rows
from sagas.sql_text.tokens import RefusedStatement


@dataclass(frozen=True, slots=True)
class WrittenSql:
    """Statements of one operation that share parameters, with their nodes in the file.

    ``step`` is the id of the step (None for a notification), ``params`` the node of the parameters if there is one.
    ``connection`` is the name of the connection whose database runs them; None: Spark does, or its name is computed.
    """

    step: str | None
    operation: OperationDraft
    place: SqlPlace
    statements: tuple[YamlNode, ...]
    params: YamlNode | None
    connection: str | None

    @property
    def given(self) -> tuple[str, ...] | None:
        """The names of the parameters; None if they are computed."""
        if self.params is None:
            return ()
        return tuple(self.params.value) if isinstance(self.params.value, dict) else None


_WITH_SQL = ("sql", SPARK, RECONCILE)


def check_sql_texts(draft: SagaDraft, report: Report) -> None:
    """Check every literal statement, and its parameters."""
    reads = {step.id for step in draft.steps if step.parsed.get("effect") == "none"}
    for written in written_sql(draft):
        is_read = written.operation.role == "probe" or (written.operation.role == "do" and written.step in reads)
        _check(written, dialects_of(draft.project, written), report, is_read=is_read)


def written_sql(draft: SagaDraft) -> Iterator[WrittenSql]:
    """All literal SQL of a saga, of all its operations; SQL with an expression in it is an error of its own."""
    operations = [(step.id, operation) for step in draft.steps for operation in step.operations]
    for step, operation in [*operations, *((None, operation) for operation in draft.notify)]:
        arguments = operation.arguments
        if arguments is None or not isinstance(arguments.value, dict) or operation.operation.uses not in _WITH_SQL:
            continue
        for place in sql_places(operation.operation.uses, arguments.to_json()):
            nodes = tuple(node for path in place.statements if (node := node_at(arguments, path)) is not None)
            if not all(isinstance(node.value, str) and node.value and "${{" not in node.value for node in nodes):
                continue
            params = node_at(arguments, place.params) if place.params else None
            yield WrittenSql(step, operation, place, nodes, params, _connection(operation, arguments, place))


def _connection(operation: OperationDraft, arguments: YamlNode, place: SqlPlace) -> str | None:
    """The name of the connection, also if it is that of `defaults`; None if it is computed or Spark runs the SQL."""
    if place.connection is None:
        return None
    node = node_at(arguments, place.connection)
    name = operation.operation.connection if node is None else node.value
    return name if isinstance(name, str) and "${{" not in name else None


def node_at(node: YamlNode, path: Path) -> YamlNode | None:
    """The node at a path of :mod:`sagas.builtins.sql_places`; None if there is none."""
    for part in path:
        children = node.value
        if not isinstance(children, list if isinstance(part, int) else dict):
            return None
        if isinstance(part, str) and part not in children:
            return None
        node = children[part]  # pyright: ignore[reportCallIssue, reportArgumentType] - a list or a mapping, see above
    return node


def dialects_of(project: ProjectContext, written: WrittenSql) -> Sequence[Dialect]:
    """The dialect of the statements; all, if the connection's URL is not known here."""
    possible = possible_dialects(written.operation.operation.uses, written.place)
    dialect = project.dialect(written.connection) if len(possible) > 1 else None
    return possible if dialect is None else (dialect,)


@dataclass(frozen=True, slots=True)
class _Mistake:
    code: str
    position: Positioned
    message: str
    help: str


def _check(written: WrittenSql, dialects: Sequence[Dialect], report: Report, *, is_read: bool) -> None:
    """Report what is wrong in the dialect; if it is not known, what is wrong in each."""
    mistakes = [_mistakes(written, dialect, is_read=is_read) for dialect in dialects]
    if all(mistakes):
        for mistake in mistakes[0]:
            report.add(mistake.code, mistake.position, mistake.message, mistake.help or None)


def _mistakes(written: WrittenSql, dialect: Dialect, *, is_read: bool) -> list[_Mistake]:
    parsed: list[ParsedSql] = []
    mistakes: list[_Mistake] = []
    guarded = written.operation.operation.uses == "sql"
    for path, node in zip(written.place.statements, written.statements, strict=False):
        try:
            parsed.append(parse_at(written.operation.operation.uses or "", path, node.value, dialect))
            _refuse_folded_comment(node, parsed[-1])
            if is_read and guarded and (keyword := written_rows(parsed[-1])) is not None:
                if written.operation.role == "probe":
                    message = f"the probe of `{written.step}` only reads, and {keyword} is a write"
                    help = "find out with a query whether the effect exists"
                else:
                    message = f"`{written.step}` has `effect: none`, and {keyword} is a write"
                    help = "remove `effect: none`, and add `compensate` or `pivot: true` before the commit point"
                mistakes.append(_Mistake("SAGA207", node, message, help))
        except RefusedStatement as error:
            code, help = "SAGA406", error.help or ""
            if isinstance(error, SwallowedText):
                code, help = "SAGA425", help if "\r" in node.value else _FOLDING
            mistakes.append(_Mistake(code, node.position_at(error.offset), error.message, help))
    if mistakes or written.given is None:
        return mistakes
    if not written.statements:
        return [
            _Mistake("SAGA426", _key(written, name), f"the parameter `{name}` belongs to no statement", _OUTER)
            for name in written.given
        ]
    for statement, differs in shared_differences(parsed, written.given, all_used=written.place.all_used):
        position = (
            _key(written, differs.name) if differs.unused else written.statements[statement].position_at(differs.offset)
        )
        mistakes.append(_Mistake("SAGA426", position, _message(written, differs), differs.help or ""))
    for node, statement in zip(written.statements, parsed, strict=True):
        for token in constant_orders(statement):
            message = f"`order by {statement.text_of(token)}` orders by one value, which is the same for all rows"
            mistakes.append(_Mistake("SAGA428", node.position_at(token.start), message, ""))
    return mistakes


_FOLDING = (
    "YAML joins the lines of `>`, `>-` and plain text: write the SQL under `|`, which keeps its lines, or the comment "
    "as /* … */"
)
_OUTER = "write `params` next to the `sql` that uses them"


def _message(written: WrittenSql, differs: ParametersDiffer) -> str:
    if differs.unused or written.place.params is not None or written.place.connection is not None:
        return differs.message
    if written.operation.operation.uses == "spark" and written.place.statements[0][0] in ("sql", "job"):
        return differs.message
    return f"the SQL has the placeholder `:{differs.name}`, and no parameters can be given here"


def _key(written: WrittenSql, name: str) -> Positioned:
    assert written.params is not None
    return written.params.key_position(name)


def _refuse_folded_comment(node: YamlNode, parsed: ParsedSql) -> None:
    """Raise :class:`SwallowedText` for a comment into which YAML has folded the lines after it."""
    for token in parsed.tokens if node.is_folded else ():
        if token.kind == "line_comment":
            last = token.start + len(parsed.text_of(token).rstrip()) - 1
            # The positions in a very long text are not counted.
            if len(node.value) > MAX_COUNTED or node.position_at(token.start).line != node.position_at(last).line:
                refuse_comment(node.value, token, _FOLDING)
