"""The times of scheduled starts: cron expressions and time zones. Temporal itself computes the times."""
