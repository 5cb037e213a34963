"""AMQP 0-9-1 as a state machine: bytes in, bytes out."""
