"""What a query fails with: every text says what happened, where, and what to do."""


class SourceError(Exception):
    """The query cannot go on as it is; trying again would not help."""


class OptionError(SourceError, ValueError):
    """An option is unknown or has a value that it cannot have."""


class TakenError(SourceError):
    """Another group reads the queue; perhaps only for a moment, until a query that was killed is quite gone."""


class DataLossError(SourceError):
    """Messages between the offsets that Spark asks for are gone, and failOnDataLoss is true."""


class SinkError(Exception):
    """Rows cannot be written as they are, or to where they are to go; trying again would not help."""
