"""Load generation for any AMQP 0-9-1 broker."""
