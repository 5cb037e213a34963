"""Coverage-guided fuzzing of the frame scanner and the whole state machine behind it: `python -m tests.fuzz --help`."""
