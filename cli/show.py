"""`saga show`: the whole story of one saga."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.context import with_client
from cli.output import print_document


def show(saga_id: Annotated[str, typer.Argument(help="the saga's id")]) -> int:
    """Tell what happened, what was undone, what is stuck and what to do."""
    from cli.story_text import print_story
    from workers.stories import read_story

    story = with_client(lambda client, settings: read_story(client, saga_id, web_ui=settings.temporal.web_ui))
    print_document(story, human=lambda: print_story(story))
    return 0
