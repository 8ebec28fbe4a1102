"""The three ports of a server. They are checked before anything starts, so that an error names a port in use."""

import errno
import itertools
import random
import socket
from typing import NamedTuple

from penstock.errors import PortError

FREE_PORTS = range(20000, 32768)
"""Below the ports of outgoing connections, which could otherwise take a server's port while it restarts."""


class Ports(NamedTuple):
    """TCP ports; 0 means any free one of `FREE_PORTS`."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


def claim_ports(wanted: Ports, address: str) -> Ports:
    """The ports with each 0 replaced by a free one; PortError names a port that is given twice or cannot be bound.

    All are bound at the same time, so that they differ, and released for the server.
    """
    for first, second in itertools.combinations(Ports._fields, 2):
        if getattr(wanted, first) == getattr(wanted, second) != 0:
            raise PortError(f"--{first}-port and --{second}-port are both {getattr(wanted, first)}; choose two ports")
    sockets: list[socket.socket] = []
    try:
        for name, port in zip(Ports._fields, wanted, strict=True):
            sockets.append(_bind(name, port, address))
        return Ports(*(bound.getsockname()[1] for bound in sockets))
    finally:
        for bound in sockets:
            bound.close()


def _bind(name: str, port: int, address: str) -> socket.socket:
    candidates = [port] if port else random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS))
    for candidate in candidates:
        try:
            return _listen(candidate, address)
        except (OSError, OverflowError) as error:
            if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
                raise PortError(f"{name} port {candidate} on {address}: {error}") from error
    if not port:
        raise PortError(f"no port from {FREE_PORTS[0]} to {FREE_PORTS[-1]} is free on {address}")
    raise PortError(f"{name} port {port} is in use on {address}; choose another with --{name}-port (0: any free one)")


def _listen(port: int, address: str) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        bound.bind((address, port))
        bound.listen()
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound
