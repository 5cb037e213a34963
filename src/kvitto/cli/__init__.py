"""The command line: one module for each command of `kvitto`. The console script and `python -m kvitto` call `main.main`."""
