"""The ports of a server, and of a gateway beside it.

They are checked before anything starts, so that an error names a port in use.
"""

import errno
import itertools
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

from penstock.errors import PortError

FREE_PORTS = range(20000, 32768)
"""Below the ports of outgoing connections, which could otherwise take a server's port while it restarts."""


class Ports(NamedTuple):
    """TCP ports; 0 means any free one of `FREE_PORTS`."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


class OtherPort(NamedTuple):
    """A port of another process that starts with the server."""

    option: str
    """Chooses it."""
    address: str
    port: int
    """0: any free one."""


def claim_ports(wanted: Ports, address: str) -> Ports:
    """The ports with each 0 replaced by a free one; PortError names a port that is given twice or cannot be bound.

    All are bound at the same time, so that they differ, and released for the server.
    """
    return claim_all_ports(wanted, address, ())[0]


def claim_all_ports(wanted: Ports, address: str, others: Sequence[OtherPort]) -> tuple[Ports, list[int]]:
    """The same for the server's ports and those of other processes."""
    own = [OtherPort(f"--{name}-port", address, port) for name, port in wanted._asdict().items()]
    for first, second in itertools.combinations([*own, *others], 2):
        if first.port == second.port != 0:
            raise PortError(f"{first.option} and {second.option} are both {first.port}; choose two ports")
    with ExitStack() as bound:
        sockets = [bound.enter_context(closing(_bind(each))) for each in (*own, *others)]
        ports = [each.getsockname()[1] for each in sockets]
    return Ports(*ports[: len(own)]), ports[len(own) :]


def _bind(wanted: OtherPort) -> socket.socket:
    option, address, port = wanted
    name = option.removeprefix("--").replace("-port", " port")
    candidates = [port] if port else random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS))
    for candidate in candidates:
        try:
            return _listen(candidate, address)
        except (OSError, OverflowError) as error:
            if not isinstance(error, OSError) or error.errno != errno.EADDRINUSE:
                raise PortError(f"{name} {candidate} on {address}: {error}") from error
    if not port:
        raise PortError(f"no port from {FREE_PORTS[0]} to {FREE_PORTS[-1]} is free on {address}")
    raise PortError(f"{name} {port} is in use on {address}; choose another with {option} (0: any free one)")


def _listen(port: int, address: str) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        bound.bind((address, port))
        bound.listen()
    except (OSError, OverflowError):
        bound.close()
        raise
    return bound
