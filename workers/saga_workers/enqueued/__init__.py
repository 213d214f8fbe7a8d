"""Delivers what applications have enqueued in their own transactions: starts of sagas, and signals to them."""
