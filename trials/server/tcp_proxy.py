"""A TCP proxy between a client and a server that can stall or cut its connections."""

import contextlib
import socket
import struct
import threading


class TcpProxy:
    """Listens on a free loopback port and forwards everything. Use as a context manager."""

    def __init__(self, port: int):
        """port: of the server, on the loopback interface."""
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._is_cut = False
        self._lock = threading.Lock()  # of the two above
        self._requests_pass, self._replies_pass = threading.Event(), threading.Event()
        self._requests_pass.set()
        self._replies_pass.set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Address for the client."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def stall(self, replies_only: bool = False) -> None:
        """Forwards nothing from now on, not even the end of a connection; all sockets stay open.

        replies_only: still forwards what the client sends.
        """
        if not replies_only:
            self._requests_pass.clear()
        self._replies_pass.clear()

    def cut(self) -> None:
        """Resets all connections and accepts no others. Stalled data is lost."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        with self._lock:
            self._is_cut = True
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._requests_pass.set()  # wakes stalled threads: their sockets are closed
        self._replies_pass.set()

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._requests_pass.wait()
            with self._lock:
                if self._is_cut:
                    client.close()
                    return
                server = socket.create_connection(self._target)
                self._ends += [client, server]
            for way in ((client, server, self._requests_pass), (server, client, self._replies_pass)):
                threading.Thread(target=_pump, args=way, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, may_pass: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            may_pass.wait()
            sink.sendall(data)
    may_pass.wait()
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
