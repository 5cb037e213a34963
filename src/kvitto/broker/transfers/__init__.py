"""Moves of messages between queues: dead letters, transactions, stages and copies, and the journal records for them."""
