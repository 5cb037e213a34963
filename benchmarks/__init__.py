"""Kvitto beside other brokers: the same load, the same machine, alternating. `make bench`; see docs/performance.md."""
