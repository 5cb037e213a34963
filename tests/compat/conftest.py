"""What is in clients/ runs in an environment of its own (python -m tests.compat --suites clients)."""

collect_ignore = ["clients"]
