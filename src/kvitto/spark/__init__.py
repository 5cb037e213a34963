"""Spark source and sink for AMQP queues, `format("amqp")`: streams and batches; it needs the client side only.

options -> source (what Spark calls) -> modes -> driver (read mode range), stream, staged -> link (a connection that comes
back), offsets, planning; reading -> columns, properties (AMQP to Arrow). The sink: sink_options -> sink (what Spark calls)
-> rows, jsonbody (Arrow to AMQP) -> writing (stages, receipts, failures). Spark finds it through the top-level module
`pyspark_kvitto`.
"""
