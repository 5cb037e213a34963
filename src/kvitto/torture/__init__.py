"""Faults against any AMQP 0-9-1 broker under load, and exact books of what it promised. `kvitto torture`; docs/torture.md."""
