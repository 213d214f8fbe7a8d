"""The process of `saga serve`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

from saga_workers.client import Client
from saga_workers.input_limits import MAX_CONNECTIONS
from saga_workers.location.locator import using_locator
from saga_workers.location.verified_outcomes import can_verify
from saga_workers.runtime.garbage import freeze_loaded_objects
from saga_workers.runtime.health import health_server, temporal_readiness
from saga_workers.runtime.http_server import HttpServer
from saga_workers.runtime.logs import fields
from saga_workers.runtime.shutdown import stop_on_signals
from saga_workers.serve.access_log import using_access_log
from saga_workers.serve.api import SagaApi
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.codec_endpoint import allowed_origins
from saga_workers.serve.operations import Operations
from saga_workers.serve.project_sagas import ProjectSagas
from saga_workers.start.bulk_wait import check_bulk_wait
from saga_workers.temporal.payload_codec import payload_codec
from saga_workers.temporal.temporal_client import connect
from sagas.project import Project
from sagas.protocol.doubtful_outcomes import NOT_VERIFIED, VERIFY_HELP
from sagas.settings import Settings

log = logging.getLogger("saga.serve")


async def run_api(
    settings: Settings, listen: str, *, health: str | None = None, grace: timedelta = timedelta(seconds=30)
) -> None:
    """Serve until SIGTERM or SIGINT; then accept no connection, and give requests under way ``grace`` to end.

    Raises UsageError without a token, if a setting is not possible, or if a port is taken; ServerDownError without a
    server.
    """
    callers = Callers(settings)
    check_bulk_wait(settings, "serve", settings.serve.bulk_wait)
    stop = stop_on_signals()
    temporal = await connect(settings)
    project = Project(settings)
    client = Client(temporal, project) if callers.may_start else None
    await asyncio.to_thread(lambda: project.definitions)
    async with AsyncExitStack() as stack:
        locator = await stack.enter_async_context(using_locator(temporal, settings, project))
        if client is not None:
            stack.push_async_callback(client.close)
        sagas = ProjectSagas(project, locator)
        keys = settings.signing_keys(create=False)
        if not can_verify(locator.keys):
            log.warning("%s; %s", NOT_VERIFIED, VERIFY_HELP)
        api = SagaApi(
            locator,
            callers,
            client,
            sagas=sagas,
            settings=settings.serve,
            operations=Operations(locator, project, sagas) if callers.may_operate else None,
            keys=keys,
            codec=payload_codec(settings),
            origins=allowed_origins(settings),
            project=project,
            access_log=await stack.enter_async_context(using_access_log(locator.ledger)),
        )
        if health is not None:
            ready = partial(temporal_readiness, temporal)
            await stack.enter_async_context(health_server(health, stop=stop, ready=ready, metrics=(api.requests,)))
        listening = await stack.enter_async_context(
            HttpServer(
                listen,
                api.app,
                option="--listen",
                description="the API",
                max_connections=max(MAX_CONNECTIONS, 2 * settings.serve.max_waiting),
                grace=grace.total_seconds(),
            )
        )
        freeze_loaded_objects()
        log.info("serving sagas over HTTP", extra=fields(namespace=temporal.namespace, port=listening.port))
        await stop.wait()
        log.info("stopping: %d requests have %d s to complete", listening.busy, int(grace.total_seconds()))
