"""The bytes of the bodies that `saga serve` holds: they are bounded for each token and for all."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from saga_workers.input_limits import MAX_WAITING_BODIES, MAX_WAITING_BODIES_OF_TOKEN
from saga_workers.serve.request_body import BadRequest
from saga_workers.serve.waiting_bodies import WaitingBodies


def test_a_token_that_holds_its_share_is_refused_and_others_are_not() -> None:
    bodies = WaitingBodies()
    with bodies.hold("a", MAX_WAITING_BODIES_OF_TOKEN):
        with pytest.raises(BadRequest, match="with this token wait") as refused, bodies.hold("a", 1):
            pass
        assert refused.value.status == 503
        with bodies.hold("b", 1):
            pass
    with bodies.hold("a", 1):
        pass


def test_all_tokens_together_are_bounded() -> None:
    bodies, tokens = WaitingBodies(), MAX_WAITING_BODIES // MAX_WAITING_BODIES_OF_TOKEN
    with ExitStack() as held:
        for token in range(tokens):
            held.enter_context(bodies.hold(f"token {token}", MAX_WAITING_BODIES_OF_TOKEN))
        with pytest.raises(BadRequest, match="to this server wait"), bodies.hold("another", 1):
            pass


def test_a_body_alone_finds_room_whatever_its_size() -> None:
    bodies = WaitingBodies()
    with bodies.hold("a", 10 * MAX_WAITING_BODIES):
        pass
