"""Structured Streaming source for AMQP queues: `spark.readStream.format("amqp")`; it needs the client side only.

options -> source (what Spark calls) -> link (a connection that comes back), offsets, planning; reading -> columns,
properties (AMQP to Arrow). Spark finds it through the top-level module `pyspark_kvitto`.
"""
