"""Moves messages from one broker to another place. `kvitto migrate` and shovels use it; it uses the asyncio client only.

A source gives loads of messages, a target takes a load whole, and only then does the source settle it: what is between
the two when something dies comes again. Where both ends are Kvitto, a load is committed once (ranges.py, targets.py).
"""
