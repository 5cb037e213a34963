"""Faults against any AMQP 0-9-1 broker under load, and a complete record of its promises. `kvitto torture`; docs/torture.md."""
