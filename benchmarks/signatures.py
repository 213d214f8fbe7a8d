"""The CPU of all signatures of one call, without a worker: `python -m benchmarks.signatures`.

A call is signed and verified, and so is its answer. Compared with the CPU of a saga that is its share, on a machine of
any load: the difference of two workers, as in :mod:`benchmarks.signing`, is smaller than the noise of both.
"""

from __future__ import annotations

import hashlib
import time

from sagas.protocol.signed_content import (
    CallSignature,
    answer_content,
    call_content,
    read_answer_signature,
    write_answer_signature,
)
from sagas.settings.signing_keys import SigningKeys

KEYS = SigningKeys(("k" * 44,))
RUN = "0199f1a2-0000-7000-8000-000000000001"
SAGA = f"guarded-3-{RUN}"
ANSWER = b'{"n":1}'
CALLS = 200
ROUNDS = 15


def sign_and_verify(argument: bytes) -> None:
    """Do for one call as workflow and worker do."""
    signature = KEYS.sign("call", call_content("sql", SAGA, RUN, "7", argument))
    assert signature is not None
    call = CallSignature.from_header(CallSignature(**signature, run_id=RUN, call="7").to_header())
    assert call is not None
    assert KEYS.verifies("call", call_content("sql", SAGA, call.run_id, call.call, argument), call.signature)
    answer = KEYS.sign("answer", answer_content(_request(argument), ANSWER), preferred=call.key)
    assert answer is not None
    given = read_answer_signature(write_answer_signature(answer))
    assert KEYS.verifies("answer", answer_content(_request(argument), ANSWER), given)


def _request(argument: bytes) -> dict[str, str]:
    digest = hashlib.sha256(argument).hexdigest()
    return {"activity": "sql", "workflow_id": SAGA, "call": "7", "request": digest}


def seconds_of_call(size: int) -> float:
    """The CPU of one call with an argument of ``size`` bytes: the best of the rounds."""
    argument, taken = b"x" * size, list[float]()
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(CALLS):
            sign_and_verify(argument)
        taken.append((time.thread_time() - began) / CALLS)
    return min(taken)


def main() -> None:
    for size in (1_000, 100_000):
        print(f"the signatures of a call of {size:,} bytes: {1e6 * seconds_of_call(size):.0f} µs of CPU")


if __name__ == "__main__":
    main()
