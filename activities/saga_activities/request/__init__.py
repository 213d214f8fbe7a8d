"""`kafka.request`: a command in the outbox, the row that waits for its reply, and what a reply says."""
