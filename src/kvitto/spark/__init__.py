"""Spark source and sink for AMQP queues, `format("amqp")`, for streams and batches. It needs the client side only.

The source: options -> source (called by Spark) -> modes -> driver (read mode range), stream, staged -> link (a
connection that reconnects), offsets, planning; reading -> columns, properties (AMQP to Arrow). The sink: sink_options
-> sink (called by Spark) -> rows, jsonbody (Arrow to AMQP) -> writing (stages, receipts, failures). Spark finds it
through the top-level module `pyspark_kvitto`.
"""
