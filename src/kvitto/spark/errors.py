"""What a query fails with: every text says what happened, where, and what to do."""


class SourceError(Exception):
    """The query cannot go on as it is; trying again would not help."""


class OptionError(SourceError, ValueError):
    """An option is unknown or has a value that it cannot have."""


class DataLossError(SourceError):
    """Messages between the offsets that Spark asks for are gone, and failOnDataLoss is true."""
