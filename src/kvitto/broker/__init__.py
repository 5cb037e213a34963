"""Virtual hosts, exchanges, queues: what a message may expect; no bytes of the protocol but the stored ones."""
