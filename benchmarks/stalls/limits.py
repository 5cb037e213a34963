"""Rows: limits."""
