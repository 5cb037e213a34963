"""A broker that is nothing but a hole and a spring: it drops what is published and delivers one message for ever.

Run as a program of its own, it shows what the load generator can do when no broker is in the way. Prints its port.
"""

import select
import socket
import sys
import threading

from kvitto.wire import methods as m
from kvitto.wire.methods import Method, frame

CLOSE = m.ConnectionClose.CLASS_ID.to_bytes(2, "big") + m.ConnectionClose.METHOD_ID.to_bytes(2, "big")
BODY = bytes(16)
BURST = 2000
ANSWERS: dict[type[Method], Method] = {
    m.ConnectionStartOk: m.ConnectionTune(2047, 131072, 0),
    m.ConnectionOpen: m.ConnectionOpenOk(),
    m.ConnectionClose: m.ConnectionCloseOk(),
    m.ChannelOpen: m.ChannelOpenOk(),
    m.ChannelClose: m.ChannelCloseOk(),
    m.QueueDeclare: m.QueueDeclareOk("perf-test"),
    m.QueueDelete: m.QueueDeleteOk(),
    m.BasicQos: m.BasicQosOk(),
    m.BasicConsume: m.BasicConsumeOk("c"),
}


def deliveries(channel: int) -> bytes:
    """BURST deliveries of 16 bytes; all have tag 1, the client only counts."""
    header = b"\x00\x3c\x00\x00" + len(BODY).to_bytes(8, "big") + b"\x10\x00\x02"
    method = m.BasicDeliver("c", 1, False, "", "perf-test").encode()
    return (frame(1, channel, method) + frame(2, channel, header) + frame(3, channel, BODY)) * BURST


def serve(sock: socket.socket) -> None:
    """Answer methods one by one until the first publish or consume; from then on only speed counts."""
    with sock, sock.makefile("rb") as stream:
        stream.read(8)
        sock.sendall(frame(1, 0, m.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US").encode()))
        while head := stream.read(7):
            channel = int.from_bytes(head[1:3], "big")
            payload = stream.read(int.from_bytes(head[3:7], "big") + 1)[:-1]
            method = m.decode(payload)
            if isinstance(method, m.BasicPublish):
                drop(sock)
                return
            answer = ANSWERS.get(type(method))
            if answer is not None:
                sock.sendall(frame(1, channel, answer.encode()))
            if isinstance(method, m.BasicConsume):
                pour(sock, deliveries(channel))
                return


def drop(sock: socket.socket) -> None:
    """Read and forget until the client says goodbye."""
    buffer = bytearray(1 << 20)
    while count := sock.recv_into(buffer):
        if CLOSE in buffer[max(0, count - 64) : count]:
            sock.sendall(frame(1, 0, m.ConnectionCloseOk().encode()))


def pour(sock: socket.socket, burst: bytes) -> None:
    """Deliver until the client says anything: that is its goodbye."""
    while not select.select([sock], [], [], 0)[0]:
        sock.sendall(burst)
    sock.recv(1 << 16)
    sock.sendall(frame(1, 0, m.ConnectionCloseOk().encode()))


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        threading.Thread(target=sys.stdin.read, daemon=True).start()
        while True:
            sock, _ = server.accept()
            threading.Thread(target=serve, args=(sock,), daemon=True).start()


if __name__ == "__main__":
    main()
