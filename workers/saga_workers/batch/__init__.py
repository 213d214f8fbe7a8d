"""Batches: all sagas of one `saga start --from`."""
