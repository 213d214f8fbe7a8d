"""The relay: publishes the outbox events to Kafka, each exactly once and in order per key.

docs/explanation/outbox-and-relay.md describes the protocol and its reasons.
"""
