"""`saga preview`: a local page that follows a definition while it is edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from saga_cli.context import global_options
from saga_cli.output import echo
from sagas.errors import UsageError

if TYPE_CHECKING:
    from sagas.settings import Settings


def preview(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="the saga's name; default: a list of all")
    ] = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT on this machine; port 0: a free one")] = "127.0.0.1:8092",
) -> int:
    """Show definitions in a browser, always as they are in their files: graph, mistakes, plan, and what follows when a
    step fails. Needs no server; ends with Ctrl+C.
    """
    import asyncio

    from saga_cli.preview.server import LOOPBACK
    from sagas.settings.addresses import split_listen_address
    from sagas.settings.loader import load_valid_settings

    if split_listen_address("--listen", listen)[0] not in LOOPBACK:
        raise UsageError(
            f"--listen {listen}: everybody could read the definitions, as a preview asks for no token",
            help="listen on 127.0.0.1, and forward the port with ssh -L",
        )
    settings, _ = load_valid_settings(global_options().config)
    asyncio.run(_serve(settings, name, listen))
    return 0


async def _serve(settings: Settings, name: str | None, listen: str) -> None:
    from saga_cli.preview.server import Preview, file_of, page_address
    from saga_workers.runtime.http_server import HttpServer
    from saga_workers.runtime.shutdown import stop_on_signals

    config = settings.config_file
    if config is None:
        raise UsageError("this is not a project: there is no saga.toml", help="saga init DIR creates one")
    only = None if name is None else file_of(config, settings.definitions, name)
    stop = stop_on_signals()
    served = Preview(config, settings, only)
    async with HttpServer(listen, served.app, option="--listen", description="the preview") as server:
        path = "/" if only is None else page_address(only)
        host = listen.rpartition(":")[0] or "127.0.0.1"
        echo(f"http://{host}:{server.port}{path}    Ctrl+C ends it")
        await stop.wait()
