"""A data directory without a broker: what is damaged in it, and another one made of the rest. Used by the command line and by tests."""
