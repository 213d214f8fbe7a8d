"""The relay: publishes the events of the outboxes to Kafka, each exactly once, in order per key.

docs/explanation/outbox-and-relay.md tells the protocol and why it is so.
"""
