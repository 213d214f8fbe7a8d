"""Semantic locks: the tables, the order of arrival, and the activities that request and release them."""
