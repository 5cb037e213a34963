"""What moves messages between queues: dead letters, transactions, stages, copies, and the records of the journal for them."""
