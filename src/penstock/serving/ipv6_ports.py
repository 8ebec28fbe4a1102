"""IPv6 beside IPv4: Triton opens its HTTP port and that of its metrics for one of the two (gRPC's for both)."""

import asyncio
import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from functools import partial

from penstock.errors import PortError
from penstock.serving.launch import OWN_FILES
from penstock_common.listening import ALL, ALL_IPV4, LOOPBACK, can_open


def triton_address(listen: str) -> str:
    """The address of Triton's ports for a server that listens on `listen`; needs `ipv6_ports` if it differs."""
    return ALL_IPV4 if listen == ALL and can_open(LOOPBACK) else listen


@contextlib.contextmanager
def ipv6_ports(*ports: int) -> Iterator[None]:
    """Passes connections over IPv6 on to the same ports of 127.0.0.1. PortError names a port in use."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] & 0xFFFFFFFF  # RLIM_INFINITY is -1
    pass_on = partial(_pass_on, asyncio.Semaphore((files - OWN_FILES) // 3))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # of connections that are lost
    with contextlib.ExitStack() as opened:
        opened.callback(loop.close)
        opened.callback(lambda: loop.run_until_complete(_end_connections()))
        for port in ports:
            try:
                bound = socket.create_server((ALL, port), family=socket.AF_INET6)
            except OSError as error:
                raise PortError(f"port {port} on {ALL}: {error.strerror}") from error
            opened.callback(loop.run_until_complete(asyncio.start_server(pass_on, sock=bound)).close)
        thread = threading.Thread(target=loop.run_forever, name="IPv6 ports", daemon=True)
        thread.start()
        opened.callback(thread.join)
        opened.callback(loop.call_soon_threadsafe, loop.stop)
        yield


async def _pass_on(free: asyncio.Semaphore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes it on in both directions, or closes it where as many are open as the limit on files allows."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        opened.callback(writer.transport.abort)
        if free.locked():
            return
        async with free:
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, writer.get_extra_info("sockname")[1])
            opened.callback(far_writer.transport.abort)
            opened.callback(asyncio.create_task(_copy(reader, far_writer)).cancel)
            await _copy(far_reader, writer)
            writer.close()
            await writer.wait_closed()  # until the client has read all


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies up to the end, and ends the copy; an error of either side aborts it."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        writer.transport.abort()


async def _end_connections() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
