"""Queues: the messages that wait, their consumers, and expiry, limits and retries. `Queue` is the interface of all kinds."""
