"""The broker without protocols and sockets: virtual hosts, exchanges, queues and the moves of messages between them."""
