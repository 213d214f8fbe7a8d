"""``[serve]`` of saga.toml: the HTTP API and its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, get_args

from sagas.errors import did_you_mean
from sagas.settings.addresses import split_base_url
from sagas.settings.forms import SECRET, TEXTS, Flag, Seconds, count, text
from sagas.settings.secrets import Secret
from sagas.settings.table import REQUIRED, Table, named_tables, setting
from sagas.settings.wrong_setting import WrongSetting

Scope = Literal["read", "start", "operate", "decode"]
SCOPES: tuple[str, ...] = get_args(Scope)


def _read_scopes(written: Sequence[str]) -> tuple[str, ...]:
    for scope in written:
        if scope not in SCOPES:
            raise WrongSetting("", f": unknown scope {scope}{did_you_mean(scope, SCOPES)}")
    return tuple(written)


class ServeToken(Table):
    """A bearer token, and what its holder may do."""

    heading = "serve.tokens.shop"
    title = "[serve.tokens.NAME]"
    summary = "A bearer token of `saga serve`, with a name for people."

    secret: Annotated[Secret, SECRET] = setting(REQUIRED, "the token (required)", {"env": "SHOP_TOKEN"})
    scopes: Annotated[tuple[Scope, ...], replace(TEXTS, read=_read_scopes)] = setting(
        ("read",),
        "what its holder may do: `read` outcomes, `start` sagas, `operate` them (needs a ledger, which records "
        "it), `decode` what the [codec](../how-to/encrypt-values.md) has encrypted",
        ["read", "start"],
    )


class ServeSettings(Table):
    """The limits and tokens of `saga serve`. ``bulk_wait`` is in seconds."""

    heading = "serve"
    summary = (
        "The HTTP API of `saga serve`, see [start-and-ask-over-http](../how-to/start-and-ask-over-http.md). At least "
        "one token is required."
    )

    token: Annotated[Secret | None, SECRET] = setting(
        None, "a bearer token with the scope `read`", {"env": "SAGA_SERVE_TOKEN"}
    )
    starts_per_second: Annotated[int, count(most=100_000)] = setting(
        100, "how many sagas each token may start per second"
    )
    max_body_bytes: Annotated[int, count(most=2_000_000)] = setting(
        1_000_000, "the maximum size of a request's body. Temporal refuses inputs above 2 MiB"
    )
    bulk_wait: Seconds = setting(
        0.0,
        "starts of a saga that arrive while others are under way share a workflow, which begins when those have ended, "
        "and at the latest after this time, up to 1s; needs a ledger. 0s: each start has a workflow of its own",
        "250ms",
    )
    max_waiting: Annotated[int, count(most=100_000)] = setting(
        256,
        "how many starts may wait for the ends of their sagas at once; a further one is answered with 202 at once",
        1000,
    )
    public_url: Annotated[str | None, text(split_base_url)] = setting(
        None,
        "the address at which participants reach `saga serve`, for the callbacks of `http`",
        "https://sagas.example.com",
    )
    console: Flag = setting(
        False,
        "serves the [console](../how-to/console.md) at `/console`. In it a token with the scope `read` sees what "
        "`saga show` prints of every saga, which is more than the outcomes",
        True,
    )
    tokens: Annotated[Mapping[str, ServeToken], named_tables(ServeToken.read, ServeToken)] = setting(
        {}, "further tokens, one table for each, see below"
    )
