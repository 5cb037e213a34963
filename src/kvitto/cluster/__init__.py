"""Replication: what a leader does to its data directory as one stream of operations, and followers that apply it (docs/adr/0030, 0032)."""
