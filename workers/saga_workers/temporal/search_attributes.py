"""The search attributes of sagas, and their registration in a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sagas.text.shell import shell_command

if TYPE_CHECKING:
    from temporalio.client import Client

SEARCH_ATTRIBUTES = {
    "SagaState": "Keyword",
    "SagaStep": "Keyword",
    "SagaReason": "Keyword",
    "SagaPaused": "Keyword",
    "SagaLabels": "KeywordList",
}


async def existing_attributes(client: Client) -> list[str]:
    """Return those that this namespace has, sorted. Raises RPCError."""
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest

    request = ListSearchAttributesRequest(namespace=client.namespace)
    registered = await client.operator_service.list_search_attributes(request, retry=True)
    return sorted(name for name in SEARCH_ATTRIBUTES if name in registered.custom_attributes)


async def missing_attributes(client: Client) -> list[str]:
    """Return those that this namespace does not have yet. Raises RPCError."""
    there = await existing_attributes(client)
    return [name for name in SEARCH_ATTRIBUTES if name not in there]


async def create_attributes(client: Client, names: list[str]) -> None:
    """Add them to the namespace. Raises RPCError if that is not allowed or the limit for their type is reached."""
    from temporalio.api.enums.v1 import IndexedValueType
    from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest

    kinds = {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    }
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace=client.namespace,
            search_attributes={name: kinds[SEARCH_ATTRIBUTES[name]] for name in names},
        )
    )


def create_attribute_commands(namespace: str) -> list[str]:
    """The shell commands that add them, for an operator with the permission."""
    create = ("temporal", "operator", "search-attribute", "create", "--namespace", namespace)
    return [shell_command(*create, "--name", name, "--type", kind) for name, kind in SEARCH_ATTRIBUTES.items()]
