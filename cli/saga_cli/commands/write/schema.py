"""`saga schema`: the language and the settings for editors."""

from __future__ import annotations

from typing import Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.output import to_json


def schema(
    with_actions: Annotated[
        bool, typer.Option("--with-actions", help="include the arguments of this project's actions")
    ] = False,
    of_settings: Annotated[bool, typer.Option("--settings", help="print the schema of saga.toml instead")] = False,
) -> None:
    """Print the JSON Schema of a definition: `saga schema --with-actions > saga.schema.json`."""
    from sagas.definition.parser.language import language_schema
    from sagas.project import Project
    from sagas.settings.model import settings_schema

    if of_settings:
        print(to_json(settings_schema(), indent=2), flush=True)
        return
    actions = Project(load_settings()).actions if with_actions else None
    print(to_json(language_schema(actions), indent=2), flush=True)
