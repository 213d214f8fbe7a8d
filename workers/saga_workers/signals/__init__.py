"""Signals that programs send to sagas, each with one effect however often it is delivered."""
