"""The topics of a project: whether it uses Kafka, which topics it names, and their creation."""
