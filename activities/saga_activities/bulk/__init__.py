"""Bulk execution: equal calls of many sagas in one transaction, under the same rules as single ones."""
