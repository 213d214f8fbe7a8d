"""What `saga trigger` runs: consumers of topics that start sagas, wake them, change databases, or feed other topics."""
