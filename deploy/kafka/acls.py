"""Grant each service's user of Kafka what docs/how-to/kafka.md lists for it. Repeatable; revokes what is not listed.

RELAY_TOPICS and the like are names separated by commas; `orders-*` stands for all that begin with `orders-`.
"""

from __future__ import annotations

import os
import sys

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

TIMEOUT = 30.0
PREFIX = os.environ.get("KAFKA_PREFIX", "saga")
TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS


def topics(variable: str, suffix: str = "") -> list[str]:
    """The names in a variable, with a suffix such as `.dlq`.

    Kafka has no pattern for the end of a name, so a suffix is refused after `*`.
    """
    names = [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]
    if wide := [name for name in names if name.endswith("*") and suffix]:
        sys.exit(f"{variable}: write the names of {', '.join(wide)}, because each has a topic that ends with {suffix}")
    return [name + suffix for name in names]


def grants() -> list[tuple[str, ResourceType, list[str], list[AclOperation]]]:
    """User, kind of resource, names, operations. READ and WRITE imply DESCRIBE."""
    return [
        ("setup", TOPIC, ["*"], [CREATE, DESCRIBE, DESCRIBE_CONFIGS]),
        ("setup", GROUP, ["*"], [DESCRIBE]),
        ("setup", TRANSACTION, [f"{PREFIX}-doctor"], [WRITE]),
        ("relay", TRANSACTION, [f"{PREFIX}-relay-*"], [WRITE]),
        ("relay", TOPIC, [f"{PREFIX}-relay-*"], [CREATE, READ, WRITE]),
        ("relay", GROUP, [f"{PREFIX}-relay-*"], [READ]),
        ("relay", TOPIC, topics("RELAY_TOPICS"), [READ, WRITE]),
        ("trigger", TOPIC, [*topics("TRIGGER_TOPICS"), f"{PREFIX}-replies"], [READ]),
        ("trigger", TOPIC, [*topics("TRIGGER_TOPICS", ".dlq"), f"{PREFIX}-replies.dlq"], [CREATE, WRITE]),
        ("trigger", GROUP, [f"{PREFIX}-{who}-*" for who in ("trigger", "consumer", "bridge", "replies")], [READ]),
        ("trigger", TRANSACTION, [f"{PREFIX}-bridge-*"], [WRITE]),
        ("trigger", TOPIC, topics("BRIDGE_TOPICS"), [READ, WRITE]),
        ("worker", TOPIC, topics("WORKER_INPUT_TOPICS"), [READ]),
        ("worker", TOPIC, topics("WORKER_OUTPUT_TOPICS"), [READ, WRITE]),
        ("worker", TOPIC, [f"{PREFIX}-spark"], [CREATE, READ, WRITE]),
        ("worker", GROUP, [f"{PREFIX}-reader*"], [READ]),
        ("worker", TRANSACTION, [f"{PREFIX}-spark-*"], [WRITE]),
    ]


def bindings() -> set[AclBinding]:
    found: set[AclBinding] = set()
    for user, kind, names, operations in grants():
        for name in names:
            prefixed = name.endswith("*") and name != "*"
            pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
            resource = name[:-1] if prefixed else name
            for operation in operations:
                allow = AclPermissionType.ALLOW
                found.add(AclBinding(kind, resource, pattern, f"User:{user}", "*", operation, allow))
    return found


def main() -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": os.environ["KAFKA_ADDRESS"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "broker",
            "sasl.password": os.environ["KAFKA_BROKER_PASSWORD"],
        }
    )
    wanted = bindings()
    for answer in admin.create_acls(list(wanted), request_timeout=TIMEOUT).values():
        answer.result(TIMEOUT)
    # Only these users: the project's own producers and participants may have ACLs that somebody else sets.
    for user in {one.principal for one in wanted}:
        anything = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            user,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        for old in set(admin.describe_acls(anything, request_timeout=TIMEOUT).result(TIMEOUT)) - wanted:
            exact = AclBindingFilter(
                old.restype,
                old.name,
                old.resource_pattern_type,
                old.principal,
                old.host,
                old.operation,
                old.permission_type,
            )
            for answer in admin.delete_acls([exact], request_timeout=TIMEOUT).values():
                answer.result(TIMEOUT)


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        sys.exit(f"the ACLs of Kafka could not be set: {error.args[0].str()}")
