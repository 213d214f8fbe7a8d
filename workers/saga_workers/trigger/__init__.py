"""What `saga trigger` runs: readers of Kafka topics that start or signal sagas, run consumers, or bridge topics."""
