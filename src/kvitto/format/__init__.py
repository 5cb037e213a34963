"""The bytes on disk: magics, layouts and constants that docs/formats.md describes, and nothing that reads or writes a file."""
