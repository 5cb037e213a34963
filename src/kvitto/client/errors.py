"""The errors of the client, by what is lost: the connection, the channel, or nothing but time."""


class AMQPError(Exception):
    """Base of all errors that this client raises, except TimeoutError and ValueError."""


class ConnectFailed(AMQPError):
    """The connection could not be opened. The text names the server, the reason, and what to check.

    `code` is the server's reason (403: wrong password, 530: no such virtual host), with which trying again does not
    help; 0 if the server was not reached or gave no reason.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class ConnectionLost(AMQPError):
    """The connection is lost. `code` and `text` are the server's; `code` is 0 if it gave none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(f"{code} {text}" if code else text)
        self.code = code
        self.text = text


class ChannelClosed(AMQPError):
    """The server closed the channel; `code` and `text` are the server's. The connection stays open; open another channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class ConsumerCancelled(AMQPError):
    """The server cancelled the channel's last consumer, because its queue was deleted."""
