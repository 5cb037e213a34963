"""What can go wrong for a client, told apart by what is lost: the connection, the channel, or only patience."""


class AMQPError(Exception):
    """Base of all that this client raises, but for TimeoutError and ValueError."""


class ConnectFailed(AMQPError):
    """No connection came about; the text says with whom, why, and what to look at.

    `code` is the server's reason (403: wrong password, 530: no such virtual host), for which trying again is no use;
    0 if the server was not reached or said nothing.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class ConnectionLost(AMQPError):
    """The connection is gone. `code` and `text` are the server's, or 0 if it went without a word."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(f"{code} {text}" if code else text)
        self.code = code
        self.text = text


class ChannelClosed(AMQPError):
    """The server closed the channel: `code` and `text` are its own. The connection lives; open another channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class ConsumerCancelled(AMQPError):
    """The server cancelled the channel's last consumer: its queue is gone."""
