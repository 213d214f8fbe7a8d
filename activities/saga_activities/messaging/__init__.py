"""Messages: the transactional outbox, the inbox of consumers, requests with replies."""
