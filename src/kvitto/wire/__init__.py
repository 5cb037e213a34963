"""The AMQP 0-9-1 codec, both ways, without state."""
