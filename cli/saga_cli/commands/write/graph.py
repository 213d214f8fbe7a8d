"""`saga graph`: the way forward and the way back, drawn."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saga_cli.context import load_settings, with_locator
from saga_cli.output import print_document
from sagas.errors import UsageError

if TYPE_CHECKING:
    from sagas.definition.model import Locks


def graph(
    name: Annotated[str, typer.Argument(help="the saga's name")],
    run: Annotated[str | None, typer.Option(metavar="ID", help="colour it by the state of this run")] = None,
    format: Annotated[
        Literal["mermaid", "svg"], typer.Option(help="mermaid: text for Markdown; svg: a picture")
    ] = "mermaid",
) -> None:
    """Draw a saga: solid arrows lead forward, dotted ones backward, thick ones from confirm to confirm.

    `--format svg > checkout.svg` writes a picture.
    """
    from sagas.definition.model import checked_entry
    from sagas.presentation.graph import build_saga_graph, to_mermaid
    from sagas.presentation.graph_picture import to_svg
    from sagas.project import Project

    definition = Project(load_settings()).definition(name)
    view = None
    if run is not None:
        from saga_workers.views.saga_view import read_view

        view = with_locator(lambda locator, settings: read_view(locator, run))
        if view.saga != name:
            raise UsageError(f"{run} is a run of {view.saga}, not of {name}")
    built = build_saga_graph(definition, view)
    text = to_mermaid(built) if format == "mermaid" else to_svg(built)
    document = {
        "saga": name,
        "state": built.state,
        "nodes": [
            {
                "id": node.step.id,
                "kind": node.step.kind,
                "undo": list(node.undo),
                "confirm": node.confirm,
                "savepoint": asdict(node.step.savepoint) if node.step.savepoint else None,
                "checks": checked_entry(node.step.id),
                "state": node.note or None,
            }
            for node in built.nodes
        ],
        "redeliver": {each.topic: list(each.redeliver) for each in definition.triggers if each.redeliver},
        "locks": _locks(definition.locks, built.locked),
        "forward": [list(edge) for edge in built.forward],
        "back": [list(edge) for edge in built.back],
        "confirms": [list(edge) for edge in built.confirms],
        format: text,
    }
    print_document(document, human=lambda: print(text, flush=True))


def _locks(locks: Locks | None, before: tuple[str, ...]) -> dict[str, object] | None:
    if locks is None:
        return None
    return {"keys": locks.keys, "wait": locks.wait, "until": locks.until, "before": list(before)}
