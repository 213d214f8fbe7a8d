"""Processes of `saga trigger`: readers of Kafka topics that start or signal sagas, run consumers, or bridge topics."""
