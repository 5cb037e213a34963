"""Other people's client test suites, run against a broker: `python -m tests.compat`."""
