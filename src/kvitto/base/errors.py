"""The kinds of mistakes, told apart by whose they are.

A peer's mistake is a `ProtocolError`: raised anywhere, turned into a Close in one place of the protocol layer.
A disk's mistake is a `StoreError`. A programmer's mistake is an `assert` and has no class here.
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
    """A peer broke a rule: `code` and `text` as they go into the Close; class and method 0 = not yet known.

    `limit`: the name in limits.REFUSALS under which it is counted; "" if no limit was met.
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
        """The text with the code's name before it, as the peers of the field send it; cut to what a short string takes."""
        name = REPLY_NAMES.get(self.code)
        text = self.text
        if name is not None and not text.startswith(name):
            text = f"{name} - {text}" if text else name
        return text.encode("utf-8", "replace")[:SHORTSTR_MAX].decode("utf-8", "ignore")


class ChannelError(ProtocolError):
    """Closes the channel; the connection lives on (W3)."""


class ConnectionError_(ProtocolError):
    """Closes the connection (W3). The underscore tells it from the builtin, which is about sockets."""


class StoreError(Exception):
    """The disk failed or holds damage: the text says what happened, in which file, and what to do."""


class PromiseError(StoreError):
    """What makes promises true has failed: a sync, the journal or the definitions. The process has to end."""


class SyncError(PromiseError):
    """A sync failed: what should have become durable may be gone, also from the operating system's cache."""


class StoreFull(StoreError):
    """There is no room for more messages; nothing was written."""
