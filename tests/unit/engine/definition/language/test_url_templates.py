"""Values in `path` and `url` of http steps are one segment each, whatever they contain."""

from __future__ import annotations

from typing import Any

import pytest

from sagas.builtins.url_templates import encoded_path, encoded_url, has_computed_host
from sagas.expressions import ExpressionError, compile_value

VARS = {"base": "https://crm.shop/v2", "prefix": "/v2"}


def rendered(template: str, value: Any) -> str:
    names = {"input": {"id": value}, "vars": VARS, "step": {"key": "saga-1/hold"}}
    return compile_value(template).render(names)


@pytest.mark.parametrize(
    ("value", "segment"),
    [
        ("17", "17"),
        (17, "17"),
        (True, "true"),
        ("ch_1-2.3~4", "ch_1-2.3~4"),
        ("a b", "a%20b"),
        ("a/b", "a%2Fb"),
        ("../admin", "..%2Fadmin"),
        ("1?admin=1", "1%3Fadmin%3D1"),
        ("1#x", "1%23x"),
        ("%2e%2e", "%252e%252e"),
        ("a\r\nb", "a%0D%0Ab"),
        ("Zoë", "Zo%C3%AB"),
        ("@evil.example", "%40evil.example"),
    ],
)
def test_a_value_is_one_segment(value: Any, segment: str) -> None:
    assert rendered(encoded_path("/orders/${{ input.id }}/items"), value) == f"/orders/{segment}/items"
    assert (
        rendered(encoded_url("https://crm.shop/orders/${{ input.id }}"), value) == f"https://crm.shop/orders/{segment}"
    )
    assert rendered(encoded_path("/orders?id=${{ input.id }}&n=1"), value) == f"/orders?id={segment}&n=1"


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/orders", "/orders"),
        ("/holds/${{ step.key }}", "/holds/saga-1%2Fhold"),
        ("${{ vars.prefix }}/orders/${{ input.id }}", "/v2/orders/a%2Fb"),
        ("/orders/${{ url_segment(input.id) }}", "/orders/a%2Fb"),
        ("/orders/${{ input.id // the id }}", "/orders/a%2Fb"),
        ("/orders/$${{ x }}/${{ input.id }}", "/orders/${{ x }}/a%2Fb"),
        ("${{ '/orders/' + input.id }}", "/orders/a/b"),
        ("${{ '/orders/' + url_segment(input.id) }}", "/orders/a%2Fb"),
    ],
)
def test_what_the_author_wrote_is_kept(template: str, path: str) -> None:
    assert rendered(encoded_path(template), "a/b") == path


@pytest.mark.parametrize("value", ["/orders?admin=1", "/orders#x", None, 7])
def test_a_path_from_data_has_no_query(value: Any) -> None:
    with pytest.raises(ExpressionError):
        rendered(encoded_path("${{ input.id }}"), value)


@pytest.mark.parametrize("value", [None, ["a"], {"a": 1}, "\ud800"])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(ExpressionError):
        rendered(encoded_path("/orders/${{ input.id }}"), value)


@pytest.mark.parametrize(
    ("template", "computed"),
    [
        ("https://crm.shop/x", False),
        ("https://crm.shop/${{ input.id }}", False),
        ("https://crm.shop?x=${{ input.id }}", False),
        ("${{ vars.base }}/orders/${{ input.id }}", False),
        ("${{ vars.base }}", False),
        ("https://${{ vars.base }}/orders", False),
        ("${{ input.url }}", True),
        ("${{ input.base }}/orders", True),
        ("https://${{ input.host }}/orders", True),
        ("https://crm.shop${{ input.id }}", True),
        ("https://crm.shop:${{ input.port }}/", True),
        ("${{ vars.base }}${{ input.path }}", True),
        ("${{ 'https://' + input.host }}", True),
    ],
)
def test_who_decides_about_the_host(template: str, computed: bool) -> None:
    assert has_computed_host(template) is computed
    assert has_computed_host(encoded_url(template)) is computed


def test_behind_a_computed_host_values_are_segments_too() -> None:
    made = encoded_url("${{ join([vars.base, input.id], '/') }}/orders/${{ input.id }}")
    assert rendered(made, "x/y") == "https://crm.shop/v2/x/y/orders/x%2Fy"
