"""An exception at every call site of the data plane in turn: who is ended by it, and that nothing confirmed is lost (docs/adr/0015)."""
