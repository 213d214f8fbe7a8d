"""The `saga` command: one file per noun, thin, and nothing heavy imported before it is needed.

How to add a command: write a file with one function and add a row to ``COMMANDS`` in :mod:`saga_cli.main`::

    # cli/saga_cli/commands/decide/cancel.py
    from __future__ import annotations

    from typing import Annotated

    import typer

    from saga_cli.context import load_settings, with_client      # global options are already taken care of
    from saga_cli.output import print_document, say


    def cancel(saga_id: Annotated[str, typer.Argument(help="the saga's id")]) -> int:
        \"\"\"Cancel a running saga and undo its steps.\"\"\"
        from saga_workers.somewhere import cancel_saga       # heavy imports inside the function

        answer = with_client(lambda client, settings: cancel_saga(client, saga_id))
        print_document(answer, human=lambda: say(f"{saga_id}: {answer['response']}"))
        return 0                                             # the exit code; None is 0

The docstring is the help text. ``-o json``, ``--json``, ``--jsonl``, ``--config`` and ``--debug`` are taken from
anywhere in the command line before the command sees it, so a command must not declare them (nor ``-o``). Errors are
raised as :class:`sagas.errors.SagaError`; :mod:`saga_cli.main` prints the message and exits with its exit code.
A command with sub-commands names a ``typer.Typer`` instead of a function (see ``cli/saga_cli/commands/begin/dev.py``).
"""

from __future__ import annotations
