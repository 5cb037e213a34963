"""One peer against everybody else: how long each attack holds the broker's loop in one piece, and what others wait meanwhile.

`python -m benchmarks.stalls --help` runs it. Rows are functions with `@row`, in a file for each theme; see `rows.py`.
"""
