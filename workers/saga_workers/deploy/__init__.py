"""Checks that a build can go on with the sagas that are open, or can still be undone: `saga check-deploy`."""
