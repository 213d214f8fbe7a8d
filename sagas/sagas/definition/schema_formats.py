"""The formats of strings that an input schema may assert: one fixed set, the same on every machine.

`date-time`, `date` and `time` follow RFC 3339, `duration` ISO 8601, `email` RFC 5321, `uri` RFC 3986, `hostname` RFC
1123, `uuid` RFC 9562. No package and no version of Python decides about a value.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Mapping
from ipaddress import AddressValueError, IPv6Address

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))")
_DURATION = re.compile(
    r"P(?:[0-9]+W|(?=.)(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+D)?"
    r"(?:T(?=.)(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+(?:\.[0-9]+)?S)?)?)"
)
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL_PART = re.compile(rf'{_ATOM}(?:\.{_ATOM})*|"(?:[ !#-\[\]-~]|\\[ -~])*"')
_CHARACTER = r"[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2}"
_SEGMENTS = rf"(?:{_CHARACTER}|[:@/])*"
_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:"
    rf"(?://(?:(?:{_CHARACTER}|:)*@)?(?P<host>\[[^\[\]]*\]|(?:{_CHARACTER})*)(?::[0-9]*)?(?:/{_SEGMENTS})?|(?!//){_SEGMENTS})"
    rf"(?:\?(?:{_CHARACTER}|[:@/?])*)?(?:\#(?:{_CHARACTER}|[:@/?])*)?"
)
_FUTURE_ADDRESS = re.compile(r"[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+")
_MAX_EMAIL = 254
_MAX_LOCAL_PART = 64
_MAX_HOSTNAME = 253


def is_date(text: str) -> bool:
    """True for `2026-12-31`; years are 0001 to 9999."""
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    return year >= 1 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]


def is_time(text: str) -> bool:
    """True for `23:59:59.5Z` or `23:59:59+01:00`. A leap second is the last one of a day in UTC."""
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    hour, minute, second = int(match[1]), int(match[2]), int(match[3])
    if hour > 23 or minute > 59 or second > 60 or int(match[5] or 0) > 23 or int(match[6] or 0) > 59:
        return False
    return second < 60 or _minute_in_utc(match) % 1440 == 1439


def _minute_in_utc(time: re.Match[str]) -> int:
    """The minute of the day, which in UTC may be another day: below 0, or from 1440 on."""
    offset = int(time[5] or 0) * 60 + int(time[6] or 0)
    return int(time[1]) * 60 + int(time[2]) - (-offset if time[4] == "-" else offset)


def is_date_time(text: str) -> bool:
    """True for a date and a time with `T` between them; its year is 0001 to 9999, also in UTC."""
    time = _TIME.fullmatch(text[11:])
    if text[10:11] not in ("T", "t") or not is_date(text[:10]) or time is None or not is_time(text[11:]):
        return False
    minute = _minute_in_utc(time)
    return not ((text.startswith("0001-01-01") and minute < 0) or (text.startswith("9999-12-31") and minute >= 1440))


def is_duration(text: str) -> bool:
    """True for `P1Y2M3DT4H5M6.5S`, with any of its parts, and for weeks alone, `P2W`."""
    return _DURATION.fullmatch(text) is not None


def is_email(text: str) -> bool:
    """True for an ASCII mailbox; its domain is a host name, or an address such as `[192.0.2.1]`."""
    local, sign, domain = text.rpartition("@")
    if not sign or len(text) > _MAX_EMAIL or len(local) > _MAX_LOCAL_PART or _LOCAL_PART.fullmatch(local) is None:
        return False
    if domain.startswith("[") and domain.endswith("]"):
        address = domain[1:-1]
        return is_ipv6(address[5:]) if address[:5].lower() == "ipv6:" else is_ipv4(address)
    return is_hostname(domain)


def is_uri(text: str) -> bool:
    """True for an absolute URI in ASCII: it begins with a scheme."""
    match = _URI.fullmatch(text)
    if match is None:
        return False
    host = match["host"]
    if host is None or not host.startswith("["):
        return True
    return is_ipv6(host[1:-1]) or _FUTURE_ADDRESS.fullmatch(host[1:-1]) is not None


def is_hostname(text: str) -> bool:
    """True for labels of ASCII letters, digits and hyphens; an international name is written as `xn--…`."""
    return 0 < len(text) <= _MAX_HOSTNAME and all(map(_is_label, text.split(".")))


def _is_label(label: str) -> bool:
    if _LABEL.fullmatch(label) is None:
        return False
    if label[2:4] != "--":
        return True
    try:
        return label[:2].lower() == "xn" and bool(label[4:].encode().decode("punycode"))
    except (UnicodeError, OverflowError, ValueError):
        return False


def is_ipv4(text: str) -> bool:
    """True for four numbers without leading zeros."""
    return _IPV4.fullmatch(text) is not None


def is_ipv6(text: str) -> bool:
    """True for an address without a zone and without brackets."""
    if not text.isascii() or "%" in text or "/" in text:
        return False
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def is_uuid(text: str) -> bool:
    """True for 32 hexadecimal digits with hyphens, of any version."""
    return _UUID.fullmatch(text) is not None


FORMATS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "date-time": (is_date_time, "a date and time such as 2026-12-31T23:59:59Z"),
    "date": (is_date, "a date such as 2026-12-31"),
    "time": (is_time, "a time with an offset such as 23:59:59Z"),
    "duration": (is_duration, "a duration such as P1DT12H"),
    "email": (is_email, "an email address such as ada@example.com"),
    "uri": (is_uri, "an absolute URI such as https://example.com/a"),
    "hostname": (is_hostname, "a host name such as shop.example.com"),
    "ipv4": (is_ipv4, "an IPv4 address such as 192.0.2.1"),
    "ipv6": (is_ipv6, "an IPv6 address such as 2001:db8::1"),
    "uuid": (is_uuid, "a UUID such as 0198c0de-0000-7000-8000-000000000000"),
}
"""Name of a format → its check, and the description of its values in messages."""


def fits_format(name: str, text: str) -> bool:
    """True if the text has the format, and for a format that is not one of :data:`FORMATS`."""
    check = FORMATS.get(name)
    return check is None or check[0](text)
