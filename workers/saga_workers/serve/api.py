"""The HTTP API of `saga serve`: start sagas, read their outcomes, and operate them. It needs a token.

The console, which is for people, is beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter
from starlette.middleware import Middleware
from starlette.routing import Route

from saga_workers.client import Client
from saga_workers.input_limits import MAX_CODEC_BYTES
from saga_workers.ledger.run_ledger import NoLedger
from saga_workers.location.locator import Locator
from saga_workers.runtime.http_server import RequestFilter, http_app
from saga_workers.serve.access_log import AccessLog
from saga_workers.serve.admission import Admission
from saga_workers.serve.api_tokens import Callers
from saga_workers.serve.authorization import Authorization
from saga_workers.serve.callbacks import CallbackReceiver
from saga_workers.serve.codec_endpoint import CODEC_PATHS, CodecCors, CodecEndpoint
from saga_workers.serve.console.console_project import ConsoleProject
from saga_workers.serve.console.routes import console_routes, routes_without_console
from saga_workers.serve.openapi_operators import OPERATION_PATHS
from saga_workers.serve.operate_endpoint import OperateEndpoint
from saga_workers.serve.operations import Operations
from saga_workers.serve.project_sagas import ProjectSagas
from saga_workers.serve.reads import ReadEndpoint
from saga_workers.serve.starts import StartEndpoint
from saga_workers.temporal.payload_codec import EncryptingCodec
from sagas.project import Project
from sagas.protocol.callback_address import CALLBACK_PATH
from sagas.settings.serve import ServeSettings
from sagas.settings.signing_keys import SigningKeys


def requests_counter(registry: CollectorRegistry) -> Counter:
    return Counter("saga_serve_requests_total", "Requests to `saga serve`, by status.", ["status"], registry=registry)


class SagaApi:
    """The endpoints. Without ``client`` no saga can be started, without ``operations`` none can be operated, without
    ``keys`` no callback is received, and without ``codec`` no payload is converted; pages of ``origins`` may ask for
    that. The console shows the sagas of ``project``, if the settings want one. ``access_log`` records starts and
    decoded payloads; without it nobody does.
    """

    def __init__(
        self,
        locator: Locator,
        callers: Callers,
        client: Client | None = None,
        *,
        sagas: ProjectSagas,
        settings: ServeSettings,
        operations: Operations | None = None,
        keys: SigningKeys | None = None,
        codec: EncryptingCodec | None = None,
        origins: Sequence[str] = (),
        project: Project | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        access_log = access_log or AccessLog(NoLedger())
        self.requests = requests_counter(CollectorRegistry())
        admission = Admission(max_waiting=settings.max_waiting)
        reads = ReadEndpoint(locator, client, sagas, admission, has_codec=codec is not None)
        starts = StartEndpoint(locator, client, sagas, settings, admission, access_log)
        callbacks = CallbackReceiver(locator.temporal, keys or SigningKeys(), callers, admission)
        routes = [
            Route("/sagas/{id}", reads.show_outcome),
            Route("/sagas/{id}/notifications", reads.show_notifications),
            Route("/sagas/{name}", starts.answer, methods=["POST"]),
            Route("/openapi.json", reads.show_openapi),
            Route(CALLBACK_PATH, callbacks.answer, methods=["POST"]),
        ]
        if operations is not None:
            operate = OperateEndpoint(operations, admission, settings.max_body_bytes)
            routes += [Route(path, operate.answering(name), methods=["POST"]) for name, path in OPERATION_PATHS.items()]
        if settings.console and project is not None:
            routes += console_routes(ConsoleProject(locator, project, sagas), callers, admission, operations)
        else:
            routes += routes_without_console()
        max_body_bytes = settings.max_body_bytes
        if codec is not None:
            endpoint = CodecEndpoint(codec, admission, access_log)
            routes += [Route(path, endpoint.answer, methods=["POST"]) for path in CODEC_PATHS]
            max_body_bytes = max(max_body_bytes, MAX_CODEC_BYTES)
        refusal = Authorization(callers).refusal
        app = http_app(
            routes,
            [Middleware(RequestFilter, refusal=refusal)],
            max_body_bytes=max_body_bytes,
            answered=self._count,
        )
        self.app = app if codec is None else CodecCors(app, origins)

    def _count(self, status: int) -> None:
        self.requests.labels(str(status)).inc()
