"""From arguments to one request, and from a status to its meaning: no server needed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from saga_activities.http import response as response_module
from saga_activities.http.request import InvalidRequestError, build_request, encode_key, redirect_target
from saga_activities.http.response import HttpResponse, check_patterns, retry_after
from sagas.builtins.http_statuses import classify_status
from sagas.input_limits import MAX_RETRY_DELAY
from sagas.text.json_values import parse_json

BASE = "https://crm.example.com/v1/"


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ({"path": "/charges"}, "https://crm.example.com/v1/charges"),
        ({"path": "charges"}, "https://crm.example.com/v1/charges"),
        # Neither form of "another host in the path" leaves the connection.
        ({"path": "//evil.example.com/x"}, "https://crm.example.com/v1/evil.example.com/x"),
        (
            {"path": "/c", "query": {"a": "x y&z", "n": 1, "yes": True}},
            "https://crm.example.com/v1/c?a=x+y%26z&n=1&yes=true",
        ),
        ({"path": "/c?a=1", "query": {"b": [1, 2], "none": None}}, "https://crm.example.com/v1/c?a=1&b=1&b=2"),
        ({"url": "https://crm.example.com:443/other"}, "https://crm.example.com:443/other"),
    ],
)
def test_address(arguments: dict[str, Any], url: str) -> None:
    assert build_request(arguments, BASE).url == url


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs `path`"),
        ({"path": "/a", "url": "https://crm.example.com/a"}, "not both"),
        ({"url": "https://evil.example.com/"}, "another host"),
        ({"url": "http://crm.example.com/"}, "another host"),
        ({"url": "ftp://crm.example.com/"}, "complete http"),
        ({"url": "https://user:pw@crm.example.com/"}, "user or password"),
        ({"path": "/orders/../admin"}, "`..` segment"),
        ({"path": "/orders/%2e%2e/admin"}, "`..` segment"),
        ({"path": "/orders/..%2fadmin"}, "`..` segment"),
        ({"path": "/a b"}, "space"),
        ({"path": "/a\r\nX: y"}, "control character"),
        ({"path": None}, "needs `path`"),
        ({"path": 7}, "must be a string"),
        ({"path": "/a", "method": "BREW"}, "method must be one of"),
        ({"path": "/a", "json": {}}, "GET request has no body"),
        ({"path": "/a", "method": "POST", "json": {}, "form": {}}, "give only one"),
        ({"path": "/a", "method": "POST", "json": float("nan")}, "cannot be written as JSON"),
        ({"path": "/a", "method": "POST", "json": object()}, "cannot be written as JSON"),
        ({"path": "/a", "method": "POST", "body": {"a": 1}}, "use `json`"),
        ({"path": "/a", "headers": {"idempotency-key": "x"}}, "set by the engine"),
        ({"path": "/a", "headers": {"Saga-Undoes": "x"}}, "set by the engine"),
        ({"path": "/a", "headers": {"x-y": "a\nb"}}, "printable ASCII"),
        ({"path": "/a", "headers": {"x-y": "a\x7f"}}, "printable ASCII"),
        ({"path": "/a", "headers": {"x y": "a"}}, "not a header name"),
        ({"path": "/a", "headers": {"x-y\r\nz": "a"}}, "not a header name"),
        ({"path": "/a", "headers": {"é": "a"}}, "not a header name"),
        ({"path": "/a", "headers": {"Host": "evil.example.com"}}, "set by the engine"),
        ({"path": "/a", "method": "POST", "body": "\ud800"}, "surrogate"),
        ({"path": "/a", "query": {"a": "\ud800"}}, "surrogate"),
        ({"path": "/\ud800"}, "surrogate|cannot be used"),
        ({"url": "https://[::1/"}, "cannot be used"),
        ({"url": "https://crm.example.com:99999/"}, "another host|cannot be used"),
        ({"url": "https://crm.example.com:x/"}, "cannot be used"),
        ({"url": "https://crm.example.com@evil.example.com/"}, "user or password"),
        ({"url": "https:///x"}, "complete http"),
        ({"path": "/" + "a" * 70_000}, "cannot be used"),
        ({"path": "/a", "query": {"a": {"b": 1}}}, "query.a"),
        ({"path": "/a", "colour": "blue"}, "no field 'colour'"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message.replace("`.", "`[.]")):
        build_request(arguments, BASE, ("Idempotency-Key",))


def test_spaces_around_a_header_value_are_not_sent() -> None:
    assert build_request({"path": "/a", "headers": {"x": " Zoe "}}, BASE).headers["x"] == "Zoe"


def test_another_host_needs_permission_and_is_marked() -> None:
    arguments = {"url": "https://Files.example.com/a"}
    assert build_request(arguments, BASE, permits=lambda host: host == "files.example.com").foreign
    with pytest.raises(InvalidRequestError, match="another host than its connection and none of its `allowed_hosts`"):
        build_request(arguments, BASE, permits=lambda host: host == "example.com")
    assert not build_request({"url": "https://crm.example.com/a"}, BASE, permits=lambda _: True).foreign


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/b", "https://crm.example.com/b"),
        ("https://CRM.example.com:443/b", "https://crm.example.com/b"),
        ("http://crm.example.com/b", None),
        ("//evil.example.com/b", None),
        ("https://user:pw@crm.example.com/b", None),
        ("https://crm.example.com@evil.example.com/b", None),
        ("https://[::1", None),
        ("", None),
    ],
)
def test_redirects_stay_on_the_host(location: str, target: str | None) -> None:
    assert redirect_target("https://crm.example.com/v1/a", location) == target


def test_bodies() -> None:
    post = {"path": "/a", "method": "post"}
    json = build_request({**post, "json": {"price": Decimal("12.50"), "ü": None}}, BASE)
    assert (json.content, json.headers["content-type"]) == ('{"price":12.50,"ü":null}'.encode(), "application/json")
    form = build_request({**post, "form": {"a": "x y", "b": 2, "c": None}}, BASE)
    assert form.content == b"a=x+y&b=2"
    text = build_request({**post, "body": "<a/>", "headers": {"Content-Type": "application/xml"}}, BASE)
    assert (text.content, text.headers["content-type"]) == (b"<a/>", "application/xml")
    assert text.target == "POST /v1/a"


def test_numbers_in_text_have_their_digits() -> None:
    number = Decimal("123456789012345678.10")
    values = {"v": number, "e": Decimal("1E+2"), "n": 2**64}
    request = build_request(
        {"path": "/a", "method": "POST", "query": values, "headers": {"x-v": number}, "form": values}, BASE
    )
    text = "v=123456789012345678.10&e=100&n=18446744073709551616"
    assert request.url.endswith("?" + text)
    assert (request.headers["x-v"], request.content) == ("123456789012345678.10", text.encode())


@pytest.mark.parametrize("number", [float("nan"), Decimal("NaN"), Decimal("1E+1001")])
def test_a_number_that_json_does_not_have_is_not_sent(number: Any) -> None:
    for place in ({"json": {"n": number}}, {"query": {"n": number}}):
        with pytest.raises(InvalidRequestError):
            build_request({"path": "/a", "method": "POST", **place}, BASE)


def test_keys_in_headers_stay_apart() -> None:
    assert encode_key("checkout-1/charge#0@2/undo") == "checkout-1/charge#0@2/undo"
    keys = ["a b", "a%20b", "a\nb", "aüb", "a%C3%BCb", 'a"b', "a\\b"]
    sent = [encode_key(key) for key in keys]
    assert len(set(sent)) == len(keys)
    assert all(value.isascii() and value.isprintable() and " " not in value for value in sent)


@pytest.mark.parametrize(
    ("status", "arguments", "expected"),
    [
        (200, {}, "done"),
        (299, {}, "done"),
        (302, {}, "other"),
        (404, {}, "other"),
        (409, {}, "rejected"),
        (422, {}, "rejected"),
        (503, {}, "other"),
        (404, {"done": ["2xx", 404]}, "done"),
        (409, {"rejected": [422]}, "other"),
        (404, {"rejected": ["4xx"]}, "rejected"),
        # A status in both lists is done.
        (409, {"done": [409], "rejected": ["4xx"]}, "done"),
        (201, {"done": 201}, "done"),
    ],
)
def test_meaning_of_a_status(status: int, arguments: dict[str, Any], expected: str) -> None:
    assert classify_status(status, arguments) == expected


@pytest.mark.parametrize("pattern", ["ok", "6xx", "2x", 20, "200-204", "", True])
def test_wrong_patterns(pattern: Any) -> None:
    with pytest.raises(InvalidRequestError, match="write a status"):
        check_patterns({"done": [pattern]})


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Sat, 21 Nov 2026 12:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("999999999", MAX_RETRY_DELAY),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("٣", None),
        ("１２", None),
        ("Sat, ٢١ Nov 2026 12:00:30 GMT", None),
        ("Sat, 21 Nov 2026 12:00:３0 GMT", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Mon, 01 Jan 2027 00:00:00 +99999999999999999999", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    response = HttpResponse(429, {"retry-after": value})
    assert retry_after(response, lambda: datetime(2026, 11, 21, 12, 0, tzinfo=UTC)) == seconds


@pytest.mark.parametrize(
    "text", ["", "hello", "{", "NaN", '{"a": Infinity}', "[" * 100_000, '"\\uD800"', "1e9999", '{"a": 1, "a": 2}']
)
def test_what_is_not_json_is_null(text: str) -> None:
    assert HttpResponse(200, text=text).json() is None


def test_an_escaped_surrogate_pair_is_a_character() -> None:
    assert HttpResponse(200, text='"\\ud83d\\ude00"').json() == "😀"


def test_cookies_are_not_recorded() -> None:
    seen = HttpResponse(200, {"set-cookie": "session=1", "x-a": "b"}, '{"a": 1}').to_json()
    assert seen == {"status": 200, "headers": {"x-a": "b"}, "json": {"a": 1}, "text": '{"a": 1}'}


def test_a_body_with_escapes_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(response_module, "parse_json", lambda text: parsed.append(text) or parse_json(text))

    response = HttpResponse(200, text='{"note": "a\\nb"}').with_masked_spellings(lambda text: text)

    assert (response.body(), response.to_json()["json"], response.problem) == ({"note": "a\nb"},) * 2 + (None,)
    assert len(parsed) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"a": 1, "echo": "\\u0073ecret\\n", "a": 2}', '{"a": 1, "echo": "•••\\n", "a": 2}'),
        ('no JSON: "\\u0073ecret" and \\"x', 'no JSON: "•••" and \\"x'),
        ("\\u0073ecret \\ud800\\", "••• ?\\"),
        ('{"echo": "\\u0053ecret"', '{"echo": "\\u0053ecret"'),
    ],
)
def test_a_secret_in_escapes_is_masked_in_what_is_no_usable_json(text: str, shown: str) -> None:
    masked = HttpResponse(200, text=text).with_masked_spellings(lambda text: text.replace("secret", "•••"))
    assert masked.text.replace("\ufffd", "?") == shown
    assert type(masked.problem) is type(HttpResponse(200, text=text).problem)


def test_masking_escapes_takes_linear_time() -> None:
    began = time.process_time()
    for text in ("x" * 400_000 + "\\", "\\" * 400_000 + "x", '\\"' * 200_000, '"' * 400_000 + "\\"):
        HttpResponse(200, text=text).with_masked_spellings(lambda text: text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with a byte order mark"])
def test_a_masked_body_is_refused_as_the_unmasked_one(mark: str) -> None:
    response = HttpResponse(200, text=f'{mark}{{"echo": "\\u0073ecret"}}')

    masked = response.with_masked_spellings(lambda text: text.replace("secret", "•••"))

    assert masked.text == f'{mark}{{"echo":"•••"}}'
    assert type(masked.problem) is type(response.problem)
