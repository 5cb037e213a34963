"""The management API and metrics over HTTP/1.1."""
