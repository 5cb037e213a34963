"""The classes of errors, by the party that made the mistake.

A peer's mistake is a `ProtocolError`: any code may raise it, and one place of the protocol layer turns it into a Close.
A disk's failure is a `StoreError`. A programmer's mistake is an `assert` and has no class here.
"""

from kvitto.base.limits import SHORTSTR_MAX

NO_ROUTE = 312
NO_CONSUMERS = 313
CONTENT_TOO_LARGE = 311
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
CONNECTION_FORCED = 320
INVALID_PATH = 402
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

REPLY_NAMES: dict[int, str] = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
"""Reply code -> the name that RabbitMQ puts before the text; clients and people search for it."""


class ProtocolError(Exception):
    """A peer broke a rule. `code` and `text` go into the Close; class and method are 0 if they are not known yet.

    `limit` is the name in limits.REFUSALS under which the error is counted; "" if no limit was exceeded.
    """

    def __init__(self, code: int, text: str, class_id: int = 0, method_id: int = 0, *, limit: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text
        self.class_id = class_id
        self.method_id = method_id
        self.limit = limit

    @property
    def reply_text(self) -> str:
        """The text with the code's name before it, as RabbitMQ sends it, cut to the length of a short string."""
        name = REPLY_NAMES.get(self.code)
        text = self.text
        if name is not None and not text.startswith(name):
            text = f"{name} - {text}" if text else name
        return text.encode("utf-8", "replace")[:SHORTSTR_MAX].decode("utf-8", "ignore")


class ChannelError(ProtocolError):
    """Closes the channel; the connection stays open (W3)."""


class ConnectionError_(ProtocolError):
    """Closes the connection (W3). The underscore distinguishes it from the builtin, which is about sockets."""


class StoreError(Exception):
    """The disk failed or is damaged. The text says what happened, in which file, and what to do."""


class PromiseError(StoreError):
    """A sync, the journal or the definitions have failed. All promises depend on them, so the process has to end."""


class SyncError(PromiseError):
    """A sync failed: data that should be durable may be lost, also from the operating system's cache."""


class UnknownFormat(StoreError):
    """The data directory is one of another version of Kvitto. Nothing is wrong with it."""


class StoreFull(StoreError):
    """The disk has no space for more messages; nothing was written."""
