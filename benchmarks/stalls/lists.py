"""Rows: lists."""
