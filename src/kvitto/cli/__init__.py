"""The command line: kvitto serve, ctl, perf."""
