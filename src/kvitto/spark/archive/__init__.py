"""`format("kvitto-archive")`: the messages and settlements in a data directory or an archive, straight from the files.

options -> source (called by Spark) -> files (finds the segments), planning (assigns them to tasks); segment and
settlements -> columns (bytes to Arrow). docs/formats.md defines the files. Spark finds it through
`pyspark_kvitto_archive`.
"""
