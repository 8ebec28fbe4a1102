"""Connections over IPv6 reach ports that are open for IPv4 alone."""

import socket
import struct
import threading

import pytest

from penstock.errors import PortError
from penstock.serving import ipv6_ports as module
from penstock.serving.ipv6_ports import ipv6_ports, triton_address

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")


def test_what_is_sent_and_answered_is_passed_on():
    """Up to the end of what is sent, and also where no server answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def echo():
            for _ in range(2):
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as file:
                    connection.sendall(file.read())

        threading.Thread(target=echo, daemon=True).start()
        with ipv6_ports(port):
            sent = bytes(1 << 20)
            for _ in range(2):
                with socket.create_connection(("::1", port), 60) as client, client.makefile("rb") as file:
                    threading.Thread(target=lambda to: (to.sendall(sent), to.shutdown(1)), args=(client,)).start()
                    assert file.read() == sent
            listener.close()
            with socket.create_connection(("::1", port), 60) as client:
                assert client.recv(1) == b""
            with pytest.raises(PortError, match=f"port {port} on ::"), ipv6_ports(port):
                pass


def test_a_reset_ends_both_sides_and_connections_are_limited(monkeypatch):
    monkeypatch.setattr(module, "OWN_FILES", module.resource.getrlimit(module.resource.RLIMIT_NOFILE)[0] - 3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        port = listener.getsockname()[1]
        with ipv6_ports(port):
            client = socket.create_connection(("::1", port), 60)
            far, _ = listener.accept()
            with socket.create_connection(("::1", port), 60) as beyond:
                assert beyond.recv(1) == b""
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            far.settimeout(60)
            with far:
                assert far.recv(1) == b""


def test_triton_takes_ipv4_where_there_is_both(monkeypatch):
    assert triton_address("::1") == "::1"
    for has_ipv4, address in ((True, "0.0.0.0"), (False, "::")):
        monkeypatch.setattr(module, "can_open", lambda _, has_ipv4=has_ipv4: has_ipv4)
        assert triton_address("::") == address
