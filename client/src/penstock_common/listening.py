"""Addresses that servers and gateways listen on: which are accepted, and how this machine reaches them.

It imports little: a probe needs it every few seconds.
"""

import ipaddress
import socket

LOOPBACK, ALL_IPV4, ALL = "127.0.0.1", "0.0.0.0", "::"
ACCEPTED = "an IP address of this machine; 0.0.0.0 (all IPv4), :: (all)"


def listen_address(text: str) -> str:
    """The address in its usual form, for `::` 0.0.0.0 where the system has no IPv6. ValueError for anything else."""
    try:
        address = ipaddress.ip_address(text)
        is_odd = address.is_multicast or text == "255.255.255.255"
        is_odd |= address.version == 6 and bool(address.ipv4_mapped or address.scope_id)
        host = ALL_IPV4 if str(address) == ALL and not can_open(ALL) else str(address)
        if is_odd or not can_open(host):
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} is no address to listen on; accepted: {ACCEPTED}") from None
    return host


def is_loopback(address: str) -> bool:
    """True if no other machine can connect to it."""
    return ipaddress.ip_address(address).is_loopback


def host_port(address: str, port: int | str) -> str:
    """ADDRESS:PORT as in a URL."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def local_host_port(address: str, port: int | str) -> str:
    """ADDRESS:PORT at which this machine reaches a server that listens on `address`."""
    if address in (ALL, ALL_IPV4):
        address = LOOPBACK if address == ALL_IPV4 or can_open(LOOPBACK) else "::1"
    return host_port(address, port)


def tcp_socket(address: str) -> socket.socket:
    """A socket to bind to the address. With `::` it takes IPv4 too, whatever the system's default is."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
    if address == ALL:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made


def can_open(address: str) -> bool:
    """True if this machine has the address."""
    try:
        with tcp_socket(address) as made:
            made.bind((address, 0))
    except OSError:
        return False
    return True
