"""The three ports of a server. They are checked before anything starts, so that an error names a port in use."""

import errno
import itertools
import socket
from typing import NamedTuple

from penstock.errors import PortError


class Ports(NamedTuple):
    """TCP ports; 0 means any free port."""

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
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        bound.bind((address, port))
        bound.listen()
    except (OSError, OverflowError) as error:
        bound.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise PortError(
                f"{name} port {port} is in use on {address}; choose another with --{name}-port (0: any free one)"
            ) from None
        raise PortError(f"{name} port {port} on {address}: {error}") from error
    return bound
