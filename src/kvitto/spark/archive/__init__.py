"""`format("kvitto-archive")`: the messages and settlements in a data directory or an archive, straight from the files.

options -> source (what Spark calls) -> files (which segments there are), planning (which task reads them); segment and
settlements -> columns (bytes to Arrow). docs/formats.md is the contract. Spark finds it through `pyspark_kvitto_archive`.
"""
