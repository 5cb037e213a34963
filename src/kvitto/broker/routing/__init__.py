"""Where a message goes: exchanges, their types and bindings, and the routes that a virtual host remembers."""
