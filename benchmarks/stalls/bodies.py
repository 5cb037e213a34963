"""Rows: bodies."""
