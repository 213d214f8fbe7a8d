"""Scheduled starts: the schedules that a project has in Temporal, and the sagas that are started for their times."""
