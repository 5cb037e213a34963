"""Queues: what waits in them, who gets it, and what else may happen to it. `Queue` is the interface of all of them."""
