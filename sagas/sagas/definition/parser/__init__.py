"""Reads the YAML of a saga into its model."""
