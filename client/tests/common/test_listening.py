"""Addresses to listen on."""

import socket

import pytest

from penstock_common import listening
from penstock_common.listening import ALL, ALL_IPV4, LOOPBACK, listen_address, local_host_port, tcp_socket


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost", "1", "127.1", "::1 ", "[::1]", "127.0.0.1:80", "fe80::1%eth0", "::ffff:127.0.0.1",
        "::ffff:0:0", "224.0.0.1", "ff02::1", "255.255.255.255", "256.0.0.1", "010.0.0.1", ":::", "192.0.2.77",
        "2001:db8::77", "fe80::1",
    ],
)  # fmt: skip
def test_what_is_no_address_to_listen_on_is_rejected(text):
    with pytest.raises(ValueError, match="is no address to listen on; accepted: an IP address of this machine"):
        listen_address(text)


def test_an_address_can_be_reached_from_this_machine(monkeypatch):
    assert [listen_address(text) for text in ("127.0.0.1", ALL_IPV4)] == [LOOPBACK, ALL_IPV4]
    assert local_host_port(ALL_IPV4, 80) == "127.0.0.1:80"
    assert local_host_port("fd00::1", 80) == "[fd00::1]:80"
    for ipv4, reached in ((True, "127.0.0.1:80"), (False, "[::1]:80")):
        monkeypatch.setattr(listening, "can_open", lambda address, ipv4=ipv4: ipv4)
        assert local_host_port(ALL, 80) == reached


def test_all_interfaces_are_both_families_or_ipv4_alone_without_ipv6(monkeypatch):
    if listen_address(ALL) == ALL:
        with tcp_socket(ALL) as listener:
            listener.bind((ALL, 0))
            listener.listen()
            for host in (LOOPBACK, "::1"):
                socket.create_connection((host, listener.getsockname()[1]), 10).close()
    monkeypatch.setattr(listening, "can_open", lambda address: ":" not in address)
    assert listen_address(ALL) == ALL_IPV4
