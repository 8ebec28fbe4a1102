"""`python -m loadtest.streaming_process FD`: plays streams for the Locust process at the other end of a socket.

A process of its own, because grpc under gevent hands each message through a thread pool and takes far more CPU than on
asyncio (docs/log.md). So nothing here may import gevent or Locust, which would patch sockets and threads.

Each side sends msgpack arrays that begin with a word. Orders and their answers, in order:

    prepare OPTIONS PROCESS     prepared PROBLEM        makes ready for a test; PROBLEM is empty where all is well
    begin USER STAGGER_S                                a user starts to play
                                utterance MESSAGE       what came of an utterance (records.py), as it ends
    end USER                    ended USER              a user stops; after its last utterance
    close                       closed                  the test is over
"""

import argparse
import asyncio
import gc
import signal
import socket
import sys
from contextlib import suppress
from functools import partial

import msgpack

from loadtest.records import Utterance
from loadtest.streaming import Stopping, Streaming
from penstock.errors import PenstockError
from penstock_client import ClientError

_READ_BYTES = 1 << 16


class StreamingProcess:
    """What the orders are carried out on."""

    def __init__(self, writer: asyncio.StreamWriter):
        self._writer = writer
        self._streaming: Streaming | None = None
        self._users: dict[int, Stopping] = {}
        """Of this test, those included that have been told to stop."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Of the users that have not ended."""
        self.error: BaseException | None = None
        """What ended a user too early; the socket is closed then."""

    async def carry_out(self, order: str, *arguments: object) -> None:
        """Any order; KeyError for a word that is none."""
        orders = {"prepare": self._prepare, "begin": self._begin, "end": self._end, "close": self._close}
        await orders[order](*arguments)

    async def _prepare(self, options: dict, process: int) -> None:
        await self._stop_streaming()
        try:
            self._streaming = Streaming(argparse.Namespace(**options), process, self._deliver)
        except (PenstockError, ClientError, ValueError) as error:
            self._say("prepared", str(error) or type(error).__name__)
            return
        gc.collect()
        gc.freeze()  # what is loaded by now stays
        self._say("prepared", "")

    async def _begin(self, user: int, stagger_s: float) -> None:
        stopping = self._users[user] = Stopping()
        task = asyncio.create_task(self._streaming.play_user(user, stagger_s, stopping))
        self._tasks.add(task)
        task.add_done_callback(partial(self._note_end, user))

    def _note_end(self, user: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if error := task.exception():
            self.error = self.error or error
            self._writer.close()
            return
        self._say("ended", user)

    async def _end(self, user: int) -> None:
        self._users[user].set()

    async def _close(self) -> None:
        await self._stop_streaming()
        self._say("closed")

    async def _stop_streaming(self) -> None:
        """Users whom Locust has given up go too: their streams fail."""
        for stopping in self._users.values():
            stopping.set()
        self._users.clear()
        if self._streaming is not None:
            await self._streaming.close()
            self._streaming = None
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _deliver(self, utterance: Utterance) -> None:
        self._say("utterance", utterance.to_message())

    def _say(self, *words: object) -> None:
        self._writer.write(msgpack.packb(words))


async def serve(connection: socket.socket) -> None:
    """Carries out what is asked for over the socket, until its other end is closed. Raises what ended a user."""
    reader, writer = await asyncio.open_connection(sock=connection)
    process, orders = StreamingProcess(writer), msgpack.Unpacker()
    with suppress(ConnectionError):  # how the end looks where something was still on its way there
        while received := await reader.read(_READ_BYTES):
            orders.feed(received)
            for order in orders:
                await process.carry_out(*order)
    if process.error:
        raise process.error


if __name__ == "__main__":
    for told_by_locust in (signal.SIGINT, signal.SIGTERM):  # which may have been sent to its whole process group
        signal.signal(told_by_locust, signal.SIG_IGN)
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
