"""The errors with which a query fails. Every text says what happened, where, and what to do."""


class SourceError(Exception):
    """The query cannot go on, and trying again would not help."""


class OptionError(SourceError, ValueError):
    """An option is unknown or has an invalid value."""


class TakenError(SourceError):
    """Another group reads the queue; perhaps only for a moment, until the broker has noticed the end of a killed query."""


class DataLossError(SourceError):
    """Messages between the offsets that Spark asks for are missing, and failOnDataLoss is true."""


class SinkError(Exception):
    """Rows cannot be written in this form or to this target, and trying again would not help."""
