"""The connection to the Temporal server of the settings.

``SAGA_TEMPORAL__…``, ``TEMPORAL_*``, saga.toml and ``.saga/dev.toml`` are already merged in the settings; what is
missing there comes from Temporal's own profile (the file that its CLI writes). There is no default address: on the
usual port another project's server may answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    Plugin,
    StartWorkflowInput,
    StartWorkflowUpdateWithStartInput,
    UpdateWithStartStartWorkflowInput,
    WorkflowHandle,
    WorkflowUpdateHandle,
)
from temporalio.envconfig import ClientConfigProfile
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import KeepAliveConfig, RetryConfig, RPCError, RPCStatusCode, TLSConfig

from saga_workers.temporal.data_converter import EXACT_CONVERTER, with_codec
from saga_workers.temporal.native_threads import await_native_threads_at_exit
from sagas.builtins.signal_names import LOCKS_SIGNAL
from sagas.errors import SagaError, UsageError
from sagas.settings import Settings
from sagas.settings.dev_stack import has_dev_stack, read_dev_file
from sagas.settings.secrets import resolve_secret
from sagas.settings.temporal import DEFAULT_NAMESPACE, Tls
from sagas.text.bounded_files import read_bounded
from sagas.workflow.json_payloads import json_payload

_CONNECT_TIMEOUT = 15.0  # seconds; a host that drops packets would never answer

_KEEP_ALIVE = KeepAliveConfig(interval_millis=10_000, timeout_millis=3_000)
"""A server refuses clients that ask more often. A connection that a firewall has forgotten is replaced after that."""

_RETRIES = RetryConfig(max_elapsed_time_millis=15_000)
"""Longer than it takes to replace a connection, so that the call that failed on it is sent again."""


class ServerDownError(SagaError):
    """The Temporal server cannot be reached."""


async def connect(
    settings: Settings,
    *,
    env: Mapping[str, str] = os.environ,
    plugins: list[Plugin] | None = None,
    identity: str | None = None,
) -> Client:
    """Connect to the server and namespace of the settings.

    ``env`` provides the TLS variables of Temporal's CLI and the location of its profile. ``identity``: of the client;
    by default the process and the machine.

    Raises:
        UsageError: the settings, a key of the codec or the profile cannot be read, or name no address.
        ServerDownError: the server does not answer, or refuses the connection.
    """
    options = connect_options(settings, env)
    address = options.pop("target_host")
    _log_like_the_rest()
    await_native_threads_at_exit()
    try:
        # Without the interceptor a start would lose the definition and the generation in its headers.
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            return await Client.connect(
                address,
                **options,
                keep_alive_config=_KEEP_ALIVE,
                retry_config=_RETRIES,
                data_converter=with_codec(EXACT_CONVERTER, settings),
                interceptors=[HeaderInterceptor()],
                plugins=plugins or [],
                identity=identity,
            )
    except (RPCError, RuntimeError, OSError) as error:
        raise server_down_error(settings, address, error) from error


@functools.cache
def _log_like_the_rest() -> None:
    """Route the log of the SDK's core to Python's logging; by default it goes to standard output, among documents.

    A program that has created its own Temporal runtime keeps it.
    """
    forwarding = LogForwardingConfig(
        logging.getLogger("temporalio"), append_target_to_name=False, prepend_target_on_message=False
    )
    telemetry = TelemetryConfig(logging=LoggingConfig(LoggingConfig.default.filter, forwarding))
    with contextlib.suppress(RuntimeError):  # a runtime exists already
        Runtime.set_default(Runtime(telemetry=telemetry))


def server_down_error(settings: Settings, address: str, error: BaseException) -> ServerDownError:
    """The error for a server that does not answer."""
    text = " ".join(str(error).split())
    if "certificate" in text.lower() or "tls" in text.lower() or "unauthenticated" in text.lower():
        return ServerDownError(
            f"the Temporal server at {address} refuses the connection: {text[:300]}",
            help="check api_key and tls under [temporal] in saga.toml",
        )
    if settings.temporal.tls or settings.temporal.api_key is not None:
        return ServerDownError(
            f"no Temporal server answers at {address} with TLS",
            help="check address, tls and api_key under [temporal] in saga.toml; an api_key needs TLS",
        )
    here = address.startswith(("127.0.0.1:", "localhost:"))
    return ServerDownError(
        f"no Temporal server answers at {address}",
        help="saga dev up    starts one" if here else f"check that {address} is right and reachable from this machine",
    )


def connect_options(settings: Settings, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The arguments of ``Client.connect``: ``target_host`` and the rest.

    Raises:
        UsageError: the settings or the profile cannot be read, or name no address.
    """
    temporal = settings.temporal
    if temporal.embedded:
        # The profile may hold a cloud's API key, which the embedded server does not use.
        return {"target_host": temporal.address, "namespace": temporal.namespace or DEFAULT_NAMESPACE}
    profile = _profile(temporal.profile, env)
    address = temporal.address or profile.address
    if not address:
        raise _no_address(settings)
    options: dict[str, Any] = {
        "target_host": address,
        "namespace": temporal.namespace or profile.namespace or DEFAULT_NAMESPACE,
    }
    if temporal.api_key is not None:
        options["api_key"] = resolve_secret(temporal.api_key, setting="temporal.api_key", root=settings.root)
    elif profile.api_key:
        options["api_key"] = profile.api_key
    if profile.grpc_meta:
        options["rpc_metadata"] = profile.grpc_meta
    if any(name.startswith("TEMPORAL_TLS") for name in env) and profile.tls is not None:
        options["tls"] = profile.tls.to_connect_tls_config()
    elif temporal.tls is not None:
        options["tls"] = _tls_config(temporal.tls, settings.root)
    elif profile.tls is not None:
        options["tls"] = profile.tls.to_connect_tls_config()
    elif "api_key" in options:
        options["tls"] = True
    return options


def names_server(settings: Settings) -> bool:
    """Return whether the settings or the profile name an address."""
    return bool(settings.temporal.address or _profile(settings.temporal.profile, os.environ).address)


def _no_address(settings: Settings) -> UsageError:
    """The error if neither the settings, the environment nor the profile name a server."""
    own = '[temporal] address = "host:7233" in saga.toml, or TEMPORAL_ADDRESS'
    if settings.temporal.profile is not None:
        return UsageError(f"the Temporal profile {settings.temporal.profile} has no address", help=own)
    if settings.config_file is not None or has_dev_stack(settings.root):
        state = "runs without Temporal" if read_dev_file(settings.root) else "is not running"
        return UsageError(
            f"the dev stack of this project {state}; start it with saga dev up",
            help=f"or configure another server: {own}",
        )
    return UsageError(
        f"no Temporal server is configured, and {settings.root} is not in a project; set TEMPORAL_ADDRESS",
        help="or choose a Temporal profile (TEMPORAL_PROFILE) or a project (--config DIR)",
    )


def _profile(name: str | None, env: Mapping[str, str]) -> ClientConfigProfile:
    try:
        return ClientConfigProfile.load(name, override_env_vars=dict(env))
    except (RuntimeError, ValueError, OSError) as error:
        text = " ".join(str(error).split())
        raise UsageError(f"the Temporal profile{f' {name}' if name else ''} cannot be read: {text}") from error


def _tls_config(tls: bool | Tls, root: Path) -> bool | TLSConfig:
    if isinstance(tls, bool):
        return tls
    if (tls.cert is None) != (tls.key is None):
        raise UsageError("temporal.tls.cert and temporal.tls.key belong together; set both, or neither")
    return TLSConfig(
        domain=tls.server_name,
        server_root_ca_cert=_read_pem(tls.ca, "ca", root),
        client_cert=_read_pem(tls.cert, "cert", root),
        client_private_key=_read_pem(tls.key, "key", root),
    )


def _read_pem(file: str | None, key: str, root: Path) -> bytes | None:
    if file is None:
        return None
    try:
        content = read_bounded(root / Path(file).expanduser())
    except OSError as error:
        raise UsageError(f"temporal.tls.{key}: {file} cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in content:
        raise UsageError(f"temporal.tls.{key}: {file} is not a PEM file")
    return content


# Headers of a workflow start carry the engine's data, so that the input stays the user's own.
_start_headers: ContextVar[Mapping[str, Any] | None] = ContextVar("saga_headers", default=None)


def to_header(value: Any) -> Payload:
    """A JSON value as a header."""
    return value if isinstance(value, Payload) else json_payload(value)


@contextmanager
def start_headers(headers: Mapping[str, Any]) -> Iterator[None]:
    """Send these headers with every workflow start inside the block: JSON values, or prepared payloads."""
    token = _start_headers.set(headers)
    try:
        yield
    finally:
        _start_headers.reset(token)


class HeaderInterceptor(Interceptor):
    """Client interceptor for ``Client.connect(interceptors=…)``; see :func:`start_headers`."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _StartHeadersOutbound(next)


class _StartHeadersOutbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        _add_start_headers(input)
        return await super().start_workflow(input)

    async def start_update_with_start_workflow(
        self, input: StartWorkflowUpdateWithStartInput
    ) -> WorkflowUpdateHandle[Any]:
        _add_start_headers(input.start_workflow_input)
        return await super().start_update_with_start_workflow(input)


def _add_start_headers(input: StartWorkflowInput | UpdateWithStartStartWorkflowInput) -> None:
    headers = _start_headers.get()
    if headers:
        input.headers = {**input.headers, **{name: to_header(value) for name, value in headers.items()}}


async def signal_granted_saga(client: Client, workflow_id: str) -> Literal["signalled", "gone"]:
    """Signal a saga that it has been granted its locks. Raises RPCError if Temporal does not answer."""
    try:
        await client.get_workflow_handle(workflow_id).signal(LOCKS_SIGNAL)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return "gone"
        raise
    return "signalled"
