"""A non-blocking socket, plain or TLS, with a heartbeat thread beside the thread that uses it.

One thread sends and receives. The heartbeat thread only sends complete heartbeat frames, between two frames of the
first thread. The lock is held for single non-blocking calls, never while waiting.
"""

import contextlib
import select
import socket
import ssl
import threading
import time

from kvitto.client import disown
from kvitto.client.errors import ConnectFailed
from kvitto.client.uri import Address
from kvitto.wire.buf import Buf

HEARTBEAT_FRAME = b"\x08\0\0\0\0\0\0\xce"
WOULD_BLOCK = -1


class Transport:
    """Sends bytes of `out`, and receives bytes into a buffer of the caller. It connects to an address, or takes a
    non-blocking socket that is connected already."""

    def __init__(self, to: Address | socket.socket) -> None:
        self.sock = connect(to) if isinstance(to, Address) else to
        self.tls = isinstance(self.sock, ssl.SSLSocket)
        self.out = Buf(1 << 16)
        self.sent = 0
        """The number of bytes of `out` that have been sent. If it is above 0, a frame may be half sent."""
        self.sent_at = time.monotonic()
        self.received_at = self.sent_at
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._stop: threading.Event | None = None
        disown.own(self)

    def disown(self) -> None:
        """Call this in a forked child: it has no heartbeat thread, which may have held the lock when the process was forked."""
        self._lock = threading.Lock()
        self._stop = None
        disown.let_go(self.sock.fileno())

    def fileno(self) -> int:
        return self.sock.fileno()

    def receive(self, into: Buf) -> int:
        """Append received bytes to `into`. Return their number, 0 at the end, or WOULD_BLOCK if there are none."""
        if into.n == into.cap:
            into.reserve(into.cap)
        view = memoryview(into.data)[into.n :]
        try:
            with self._lock:
                count = self.sock.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return WOULD_BLOCK
        except ssl.SSLEOFError:
            return 0
        self.received_at = time.monotonic()
        into.n += count
        return count

    def flush(self) -> bool:
        """Send what the socket takes of `out`. Return True if all of it is sent."""
        out = self.out
        while out.n > self.sent:
            try:
                with self._lock:
                    self.sent += self.sock.send(out.view(self.sent))
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            self.sent_at = time.monotonic()
        with self._lock:
            self.sent = 0
            out.clear()
        return True

    def wait(self, write: bool, timeout_s: float | None) -> None:
        """Wait until the socket can be read (or also written), or until the time is over."""
        if self.tls and not write and self.sock.pending():  # type: ignore[attr-defined]
            return
        self._poll.register(self.sock, select.POLLIN | (select.POLLOUT if write else 0))
        self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)

    def start_heartbeats(self, interval_s: float) -> None:
        """Keep the connection alive while the using thread is busy elsewhere."""
        self._stop = threading.Event()
        name = "kvitto-client-heartbeat"
        threading.Thread(target=self._beat, args=(interval_s / 2, self._stop), name=name, daemon=True).start()

    def _beat(self, interval_s: float, stop: threading.Event) -> None:
        while not stop.wait(interval_s / 2):
            with self._lock, contextlib.suppress(OSError):
                if self.sent == 0 and time.monotonic() - self.sent_at >= interval_s / 2:
                    self._send_whole(HEARTBEAT_FRAME)
                    self.sent_at = time.monotonic()

    def _send_whole(self, data: bytes) -> None:
        """Send all or nothing, unless the connection is broken: half a heartbeat would break every frame after it."""
        done = 0
        while done < len(data):
            try:
                done += self.sock.send(data[done:])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if done == 0:
                    return
                poll = select.poll()  # `select.select` takes no descriptor above 1,023
                poll.register(self.sock, select.POLLOUT)
                poll.poll(1000)

    def close(self) -> None:
        """Close the socket and end the heartbeats. A second call does nothing."""
        if self._stop is not None:
            self._stop.set()
        with contextlib.suppress(OSError):
            self.sock.close()


def connect(address: Address) -> socket.socket:
    """Return a connected non-blocking socket without Nagle's delay. ConnectFailed says what was tried."""
    try:
        sock = _reach(address)
    except TimeoutError:
        raise ConnectFailed(
            f"{address}: no answer within {address.connect_timeout_s:g} s; is the host right?"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectFailed(f"{address}: {reason}; is the broker running and the port right?") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            context = address.ssl_context()
            sock = context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
            disown.own_socket(sock)
            sock.do_handshake()
    except (OSError, ValueError) as error:
        sock.close()
        raise ConnectFailed(f"{address}: TLS failed: {error}; is it a TLS port, and cacertfile right?") from None
    sock.setblocking(False)
    return sock


def _reach(address: Address) -> socket.socket:
    """Return a socket that is connected to the first address of the host that answers."""
    failed: OSError | None = None
    for family, kind, protocol, _, where in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        disown.own_socket(sock)
        try:
            sock.settimeout(address.connect_timeout_s)
            sock.connect(where)
        except OSError as error:
            sock.close()
            failed = failed or error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    assert failed is not None
    raise failed
