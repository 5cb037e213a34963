"""Load generation against any AMQP 0-9-1 broker."""
