"""Stateful fuzzing: several connections over one broker, from a grammar of all methods (`python -m tests.fuzz.sessions --help`).

`grammar/` invents the next actions from what exists, one file per theme; `world` performs them on the real broker over a simulated disk;
`client` is what each peer knows; `oracle` says what must hold; `story` is a list of actions that can be kept, run again and shrunk.
"""
