"""Definitions from a document: what RabbitMQ, LavinMQ or Kvitto has exported is read, checked as a whole, and applied in pieces."""
