"""A broker whose users log in and need ACLs."""

from __future__ import annotations

from typing import Any

from confluent_kafka import admin as library

from sagas.settings import KafkaSettings
from tests.helpers.kafka_broker import Broker

ACLS: Any = library
AclOperation, ResourceType = ACLS.AclOperation, ACLS.ResourceType

JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="admin-secret" '
    'user_admin="admin-secret" user_saga="saga-secret" user_stranger="stranger-secret";'
)
SASL = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


def login(user: str, password: str | None = None) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password or f"{user}-secret",
    }


def settings(broker: Broker, user: str, **more: Any) -> KafkaSettings:
    return broker.settings(client=login(user), **more)


def allow(broker: Broker, kind: Any, name: str, *operations: Any) -> None:
    """ACLs for the user `saga`, for all names that begin so."""
    admin = _admin(broker)  # kept until it has answered
    for answer in admin.create_acls(_bindings(ACLS.AclBinding, kind, name, *operations)).values():
        answer.result(30)


def forbid(broker: Broker, kind: Any, name: str, *operations: Any) -> None:
    """Remove what :func:`allow` has allowed."""
    admin = _admin(broker)
    for answer in admin.delete_acls(_bindings(ACLS.AclBindingFilter, kind, name, *operations)).values():
        assert answer.result(30)


def _admin(broker: Broker) -> Any:
    return ACLS.AdminClient({"bootstrap.servers": broker.address, **login("admin")})


def _bindings(make: Any, kind: Any, name: str, *operations: Any) -> list[Any]:
    pattern, allowed = ACLS.ResourcePatternType.PREFIXED, ACLS.AclPermissionType.ALLOW
    return [make(kind, name, pattern, "User:saga", "*", operation, allowed) for operation in operations]
