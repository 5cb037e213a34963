"""A small AMQP 0-9-1 client with a compiled codec."""
