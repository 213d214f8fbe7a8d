"""Hears the replies to commands of `kafka.request` and wakes the sagas that wait for them."""
