"""The Locust process's handle of the process that plays its streams. Waits with gevent; see streaming_process.py."""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import gevent
import gevent.event
import msgpack

from loadtest.options import ROOT, STREAMING_OPTIONS
from loadtest.records import Utterance
from penstock.errors import PenstockError

_READ_BYTES = 1 << 16
_LONGEST_WAIT_S = 10.0


class StreamingHandle:
    """Starts the process, which lives as long as this one. `deliver` gets each utterance when it has ended.

    `lost` is called once if the process ends before us, with what there is to say of it.
    """

    def __init__(self, deliver: Callable[[Utterance], None], lost: Callable[[str], None]):
        self._deliver = deliver
        self._lost = lost
        self._users = 0
        self._prepared: gevent.event.AsyncResult = gevent.event.AsyncResult()
        self._closed = gevent.event.Event()
        self._ended: dict[int, gevent.event.Event] = {}
        self._problem = ""
        self._socket, others = socket.socketpair()
        command = [sys.executable, "-m", "loadtest.streaming_process", str(others.fileno())]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        with others:
            self._process = subprocess.Popen(command, env=environment, pass_fds=[others.fileno()])
        self._reader = gevent.spawn(self._read)

    def prepare(self, options: argparse.Namespace, process: int) -> None:
        """Makes ready for a test. Raises PenstockError for options that cannot be met."""
        self._prepared = gevent.event.AsyncResult()
        self._users = 0
        self._ended.clear()
        self._send("prepare", {name: getattr(options, name) for name in STREAMING_OPTIONS}, process)
        if problem := self._problem or self._prepared.get():
            raise PenstockError(problem)

    def begin_user(self, stagger_s: float) -> int:
        """A new user begins to play, within `stagger_s` seconds. Returns its number."""
        self._users += 1
        self._ended[self._users] = gevent.event.Event()
        self._send("begin", self._users, stagger_s)
        return self._users

    def end_user(self, user: int) -> None:
        """Stops a user; returns when its last utterance has been delivered."""
        ended = self._ended[user]
        self._send("end", user)
        if not self._problem:
            ended.wait()

    def close(self) -> None:
        """Ends the test's connection to the server; the process stays for the next test."""
        self._closed.clear()
        self._send("close")
        if not self._problem:
            self._closed.wait(_LONGEST_WAIT_S)

    def _send(self, *order: object) -> None:
        if not self._problem:
            try:
                self._socket.sendall(msgpack.packb(order))
            except OSError:
                self._give_up()

    def _read(self) -> None:
        messages = msgpack.Unpacker()
        try:
            while received := self._receive():
                messages.feed(received)
                for message in messages:
                    self._take_in(*message)
        finally:
            self._give_up()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_READ_BYTES)
        except OSError:
            return b""

    def _take_in(self, word: str, *values: object) -> None:
        if word == "utterance":
            self._deliver(Utterance.from_message(*values))
        elif word == "ended":
            if values[0] in self._ended:  # else Locust has given the user up
                self._ended[values[0]].set()
        elif word == "prepared":
            self._prepared.set(values[0])
        elif word == "closed":
            self._closed.set()

    def _give_up(self) -> None:
        """Releases all that wait."""
        if self._problem:
            return
        self._problem = "the process that plays the streams has ended; its messages are above"
        self._prepared.set(self._problem)
        self._closed.set()
        for ended in self._ended.values():
            ended.set()
        self._lost(self._problem)
