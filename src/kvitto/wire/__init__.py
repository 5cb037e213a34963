"""The AMQP 0-9-1 codec, in both directions, without state."""
