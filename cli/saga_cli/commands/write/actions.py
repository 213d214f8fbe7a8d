"""`saga actions`: what a definition can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saga_cli.context import load_settings
from saga_cli.output import echo, make_console, print_document, print_list, to_json
from sagas.errors import UsageError

if TYPE_CHECKING:
    from sagas.actions.registry import Action
    from sagas.actions.signature import Parameter


def actions(
    name: Annotated[str | None, typer.Argument(help="one action, with all its arguments")] = None,
) -> None:
    """List the actions of this project and the built-in ones, with their arguments."""
    from sagas.builtins.registry import BUILTINS
    from sagas.project import Project

    own = Project(load_settings()).actions
    rows = [_project_action(action) for action in own.values()]
    rows += [_built_in(builtin.name, builtin.summary, builtin.parameters) for builtin in BUILTINS.values()]
    if name is None:
        print_list(rows, human=_print_table)
        return
    described = next((row for row in rows if row["name"] == name), None)
    if described is None:
        from sagas.errors import did_you_mean

        names = tuple(row["name"] for row in rows)
        raise UsageError(f"there is no action {name}{did_you_mean(name, names)}", help="saga actions    lists them")
    print_document(described, human=lambda: _print_action(described))


def _project_action(action: Action) -> dict[str, Any]:
    from sagas.actions.registry import result_schema

    other_arguments = action.signature.other_arguments
    return {
        "name": action.name,
        "summary": action.summary,
        "built_in": False,
        "connection": action.connection,
        "rejects": action.rejects,
        "idempotent": action.idempotent,
        "batch": action.batch,
        "seals": action.seals,
        "arguments": [_argument(parameter) for parameter in action.signature.parameters],
        "other_arguments": None
        if other_arguments is None
        else {"type": type_text(other_arguments.schema), "schema": other_arguments.schema},
        "result": result_schema(action),
    }


def _argument(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "required": parameter.required,
        "type": type_text(parameter.schema),
        "schema": parameter.schema,
    }


def _built_in(name: str, summary: str, parameters: Any) -> dict[str, Any]:
    required = parameters.get("required", ())
    return {
        "name": name,
        "summary": summary,
        "built_in": True,
        "arguments": [
            {"name": argument, "required": argument in required, "type": type_text(schema), "schema": schema}
            for argument, schema in parameters["properties"].items()
        ],
    }


def type_text(schema: Any) -> str:
    """A JSON Schema in a few words: `text`, `list of integer`, `"a" or "b"`."""
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return " or ".join(dict.fromkeys(type_text(option) for option in schema[key]))
    if "enum" in schema:
        return " or ".join(to_json(value) for value in schema["enum"])
    if "const" in schema:
        return to_json(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(_TYPE_NAMES.get(type, str(type)) for type in kind)
    if kind == "array" and schema.get("items"):
        return f"list of {type_text(schema['items'])}"
    if kind is None:
        return schema["$ref"].rsplit("/", 1)[-1] if "$ref" in schema else "anything"
    return _TYPE_NAMES.get(kind, str(kind))


_TYPE_NAMES = {"string": "text", "object": "mapping", "array": "list", "boolean": "true or false", "null": "nothing"}


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = make_console()
    wide = out.width >= 120
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for title in ("action", "runs in", *(["arguments"] if wide else []), "what it does"):
        table.add_column(title, no_wrap=title in ("action", "runs in"))
    for row in rows:
        where = "built in" if row["built_in"] else row["connection"] or "no transaction"
        names = [argument["name"] + ("" if argument["required"] else "?") for argument in row["arguments"]]
        given = ", ".join([*names, *(["…"] if row.get("other_arguments") else [])])
        cells = [Text(row["name"], style="bold"), Text(where, style="dim"), *([given] if wide else []), row["summary"]]
        table.add_row(*cells)
    out.print(table)
    out.print(Text("saga actions NAME    shows all arguments", style="dim"))


def _print_action(row: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    out = make_console()
    out.print(Text.assemble((row["name"], "bold"), f"  {row['summary']}"))
    if not row["built_in"]:
        if row["connection"]:
            echo(f"guarded: runs in one transaction on {row['connection']}")
            if row["batch"]:
                echo("takes the calls of several sagas at once")
        else:
            honours = "honours the idempotency key" if row["idempotent"] else "does not honour the idempotency key"
            echo(f"unguarded: the participant {honours}")
        echo("may reject" if row["rejects"] else "never rejects")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    for title in ("argument", "", "type"):
        table.add_column(title)
    for argument in row["arguments"]:
        table.add_row(
            Text(argument["name"], style="bold"), "required" if argument["required"] else "optional", argument["type"]
        )
    if others := row.get("other_arguments"):
        table.add_row("any other", "optional", others["type"])
    if table.row_count:
        out.print(table)
