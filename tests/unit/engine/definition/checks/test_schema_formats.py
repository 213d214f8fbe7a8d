"""The formats of an input schema: the same on every machine."""

from __future__ import annotations

import pytest

from sagas.definition.input_validation import validate_input
from sagas.definition.model import Definition
from sagas.definition.schema_formats import FORMATS, fits_format

VALID = {
    "date": "2026-12-31 2024-02-29 0001-01-01 9999-12-31",
    "time": "23:59:59Z 00:00:00z 12:00:00.123456789+23:59 23:59:60Z 23:59:60.5Z 15:59:60-08:00 00:29:60+00:30",
    "date-time": "2026-12-31T23:59:59Z 2026-12-31t23:59:59z 1998-12-31T23:59:60Z 2026-01-01T00:00:00.1-00:00 "
    "9999-12-31T23:59:59+12:00 0001-01-01T00:00:00-12:00 9999-12-31T11:59:59-12:00",
    "duration": "P1W P3D PT0.5S P1Y2M3DT4H5M6S PT1H1S P0D PT36H",
    "email": "ada@example.com a+b@x ada@[192.0.2.1] ada@[IPv6:2001:db8::1] o'neil@a-b.example",
    "uri": "https://example.com/a?b=c#d mailto:ada@example.com urn:isbn:1 http://[2001:db8::1]:80/ a: http://a%20b/ "
    "http://u:p@h:8080/p http://[v1.fe]/ file:///etc",
    "hostname": "example.com a localhost 1.2.3.4 a-b.example xn--bcher-kva.example " + "a" * 63,
    "ipv4": "192.0.2.1 0.0.0.0 255.255.255.255",
    "ipv6": "::1 2001:db8::1 ::ffff:192.0.2.1 1:2:3:4:5:6:7:8",
    "uuid": "0198c0de-0000-7000-8000-000000000000 0198C0DE-0000-7000-8000-00000000000F",
}
INVALID = {
    "date": "2026-13-01 2026-02-30 2025-02-29 0000-01-01 12000-01-01 2026-1-1 20260101 ２026-01-01 2026-01-01\n",
    "time": "24:00:00Z 23:59:60 12:00:00 22:59:60Z 23:59:60+01:00 12:00Z 12:00:00+24:00 12:00:00+0100 12:60:00Z",
    "date-time": "2026-12-31 2026-12-31\u202023:59:59Z 2026-12-31T24:00:00Z 2026-12-31T23:59:59 0000-01-01T00:00:00Z "
    "9999-12-31T23:59:59-12:00 0001-01-01T00:00:00+12:00",
    "duration": "P PT P1 1D P1D2W P-1D -P1D PT1 P1H P1DT p1d P0.5D PT1M1H PT.5S P1W1D",
    "email": "ada ada@ @a a@b@c a..b@x .a@x a.@x a@-x ada@[1.2.3] ädä@example.com a@ä.example " + "a" * 65 + "@x",
    "uri": "//example.com/a /a a https://exämple.com http://a\\b http://[::1 http://[::1%25eth0]/ http://a%2/ 1a:b",
    "hostname": "example.com. . .a a..b -a a- a_b bücher.example ab--cd xn-- xn--\u00e9 "
    + "a" * 64
    + " "
    + "a." * 127
    + "a",
    "ipv4": "192.0.2 192.0.2.256 192.0.2.01 1.2.3.4.5 0x1.2.3.4 １.2.3.4",
    "ipv6": "fe80::1%eth0 ::1/64 [::1] 1::2::3 12345:: ::ffff:192.0.2.01",
    "uuid": "0198c0de000070008000000000000000 {0198c0de-0000-7000-8000-000000000000} 0198c0de-0000-7000-8000-000000000",
}


def cases(values: dict[str, str]) -> list[tuple[str, str]]:
    pairs = [(name, text) for name, texts in values.items() for text in texts.split(" ")]
    return [(name, text.replace("\u2020", " ")) for name, text in pairs if '"' not in text]


@pytest.mark.parametrize(("name", "text"), [*cases(VALID), ("email", '"a b"@example.com'), ("email", r'"a\"b"@x')])
def test_what_a_format_takes(name: str, text: str) -> None:
    assert fits_format(name, text)


@pytest.mark.parametrize(("name", "text"), [*cases(INVALID), ("email", '"a"b"@x'), ("ipv6", ":: 1"), ("uri", "a b:c")])
def test_what_a_format_refuses(name: str, text: str) -> None:
    assert not fits_format(name, text)
    schema = {"properties": {"v": {"format": name}}}
    [message] = validate_input(Definition("shop", (), input=schema), {"v": text})[1]
    assert message.startswith("input.v: ")
    assert message.endswith(f"is not {FORMATS[name][1]}")


def test_a_format_says_nothing_about_other_types_and_unknown_ones_nothing_at_all() -> None:
    schema = {"properties": {"v": {"format": "date"}, "w": {"format": "color"}}}
    assert validate_input(Definition("shop", (), input=schema), {"v": 1, "w": "x"})[1] == []
