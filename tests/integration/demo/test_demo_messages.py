"""Messages of the shop: the checks detect each mismatch, and the web site is down at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from definitions.retail.demo.messages import compare_deliveries, differing
from definitions.retail.demo.order_channel import OrderAmount
from definitions.retail.demo.shopfront import REFUSED_ATTEMPTS, ReceivedEvent, Shopfront, open_shopfront, shared_secret
from sagas.protocol.saga_view import NotificationView
from tests.helpers.free_ports import free_port

ORDERS = [OrderAmount(1, "3.98"), OrderAmount(2, "7.46")]
DELIVERED = NotificationView(
    id="n", event="e", when="parked", uses="http", at="2026-01-01T00:00:00Z", run="r", state="DELIVERED", attempts=3
)
BODY = b'{"type": "saga.parked"}'


def test_the_same_orders_do_not_differ():
    assert differing(ORDERS, ORDERS[::-1]) == []


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (ORDERS[:1], ["order 2"]),
        ([*ORDERS, ORDERS[1]], ["order 2"]),
        ([ORDERS[0], OrderAmount(2, "7.45")], ["order 2"]),
        ([*ORDERS, OrderAmount(3, "1.00")], ["order 3"]),
    ],
    ids=["lost", "doubled", "one cent", "nobody's"],
)
def test_an_order_that_is_lost_doubled_or_changed_is_found(other, wrong):
    assert differing(ORDERS, other) == differing(other, ORDERS) == wrong


def test_a_notification_that_was_given_up_or_never_arrived_is_found():
    rows = {"a": DELIVERED, "b": replace(DELIVERED, state="EXHAUSTED", attempts=6), "c": DELIVERED}
    deliveries = compare_deliveries(rows, {"a": ReceivedEvent(3, True), "b": ReceivedEvent(2, False)})
    assert (deliveries.total, dict(deliveries.attempts)) == (3, {3: 2})
    assert [result.violations for result in deliveries.results] == [("b",), ("c",)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Shopfront, str, str]]:
    url, secret = f"http://127.0.0.1:{free_port()}", shared_secret(tmp_path / "shopfront" / "secret")
    shopfront = open_shopfront(url, secret)
    assert shopfront is not None
    yield shopfront, url, secret
    shopfront.close()


def post(url: str, secret: str, event: str, body: bytes = BODY) -> int:
    now = datetime.now(UTC)
    headers = {
        "webhook-id": event,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(event, now, BODY.decode()),
    }
    return httpx.post(f"{url}/orders/delayed", content=body, headers=headers).status_code


def test_the_web_site_refuses_first_and_accepts_then(site):
    shopfront, url, secret = site
    assert [post(url, secret, "one") for _ in range(REFUSED_ATTEMPTS + 1)] == [503] * REFUSED_ATTEMPTS + [204]
    assert post(url, secret, "two") == 503
    assert shopfront.received == {"one": ReceivedEvent(REFUSED_ATTEMPTS + 1, True), "two": ReceivedEvent(1, False)}


def test_a_wrong_signature_is_refused(site, tmp_path):
    shopfront, url, secret = site
    assert post(url, shared_secret(tmp_path / "other"), "one") == 401
    assert post(url, secret, "one", body=b"{}") == 401
    assert httpx.post(url, content=BODY).status_code == 401
    assert shopfront.received == {}


def test_the_secret_is_kept_and_the_site_starts_once(site, tmp_path):
    _, url, secret = site
    assert shared_secret(tmp_path / "shopfront" / "secret") == secret
    assert open_shopfront(url, secret) is None
