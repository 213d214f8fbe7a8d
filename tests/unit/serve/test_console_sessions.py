"""Sessions of the console end by themselves, and a token cannot fill the memory with them."""

from __future__ import annotations

from saga_workers.serve.console.sessions import Sessions

HOUR = 3600.0


def test_a_session_lasts_eight_hours() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    session = sessions.begin("staff", "Bearer one")
    now[0] = 8 * HOUR - 1
    assert sessions.find(session.id) is session
    now[0] = 8 * HOUR
    assert sessions.find(session.id) is None


def test_of_more_than_fifty_sessions_of_a_token_the_oldest_end() -> None:
    sessions = Sessions()
    other = sessions.begin("other", "Bearer two")
    begun = [sessions.begin("staff", "Bearer one") for _ in range(52)]
    kept = [session for session in begun if sessions.find(session.id) is not None]
    assert kept == begun[2:]
    assert sessions.find(other.id) is other


def test_ids_of_sessions_and_their_forms_cannot_be_guessed() -> None:
    sessions = Sessions()
    begun = [sessions.begin("staff", "Bearer one") for _ in range(10)]
    secrets = {session.id for session in begun} | {session.form_token for session in begun}
    assert len(secrets) == 20
    assert all(len(secret) >= 43 for secret in secrets), "256 bits in base64"
    assert all(secret not in repr(session) for session in begun for secret in (session.id, session.form_token))
