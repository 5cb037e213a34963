"""Sockets, the event loop, threads and signals; the embedded broker."""
