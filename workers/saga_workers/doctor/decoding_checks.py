"""The check of `saga doctor` that says who has had values decoded by the codec endpoint."""

from __future__ import annotations

from datetime import timedelta

from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.ledger.run_ledger import using_ledger
from sagas.definition.times import format_timestamp
from sagas.errors import SagaError
from sagas.settings import Settings

_DAYS = 7
_CHECK = "decoded values"


async def check_decoding(settings: Settings) -> list[DoctorResult]:
    """A result for each token that has had values decoded within a week; nothing if no token may."""
    if settings.codec.key is None or not any("decode" in token.scopes for token in settings.serve.tokens.values()):
        return []
    if settings.ledger.connection is None:
        what = "a token of `saga serve` may have values decoded, and without [ledger] nobody records who has"
        return [DoctorResult(_CHECK, None, what, "set [ledger] connection in saga.toml")]
    try:
        async with using_ledger(settings) as ledger:
            decoded = await ledger.decoded(timedelta(days=_DAYS))
    except SagaError as error:
        return [DoctorResult(_CHECK, False, error.message, error.help or "saga setup")]
    if not decoded:
        return [DoctorResult(_CHECK, True, f"none within {_DAYS} days")]
    return [
        DoctorResult(
            _CHECK,
            True,
            f"{each.who} has had {each.payloads:,} payloads decoded within {_DAYS} days, "
            f"the last at {format_timestamp(each.last.timestamp())}",
        )
        for each in decoded
    ]
