"""Structured Streaming source for AMQP queues; it needs the client side only."""
