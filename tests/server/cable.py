"""A network line between a client and a server that can be cut, or fall silent."""

import contextlib
import socket
import struct
import threading


class Cable:
    """Listens on a free loopback port and hands everything on. Use as a context manager."""

    def __init__(self, port: int):
        """port: of the server, on the loopback."""
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
        """What a client connects to."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def hold(self, replies_only: bool = False) -> None:
        """Falls silent: from now on nothing passes, no end of a connection either; all sockets stay open.

        replies_only: what comes from the client still passes.
        """
        if not replies_only:
            self._requests_pass.clear()
        self._replies_pass.clear()

    def cut(self) -> None:
        """Ends all connections by a reset, and takes no others. What was held is lost."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in `accept`
        self._listener.close()
        with self._lock:
            self._is_cut = True
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._requests_pass.set()  # wakes whoever holds something: its socket is closed
        self._replies_pass.set()

    def __enter__(self) -> "Cable":
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
