"""The Locust process's handle of the process that plays its streams (streaming_process.py). Waits with gevent."""

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
from loadtest.player import Utterance
from penstock.errors import RunError

_READ_BYTES = 1 << 16
_MAX_WAIT_S = 10.0


class StreamingHandle:
    """Starts the process, which lives as long as this one. `deliver` receives each utterance when it has ended.

    `lost` is called once, with a message, if the process ends before this one.
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
        gevent.spawn(self._read)

    def prepare(self, options: argparse.Namespace, process: int) -> None:
        """Prepares a test. Raises RunError for invalid options."""
        self._prepared = gevent.event.AsyncResult()
        self._users = 0
        self._ended.clear()
        self._send("prepare", {name: getattr(options, name) for name in STREAMING_OPTIONS}, process)
        if problem := self._problem or self._prepared.get():
            raise RunError(problem)

    def begin_user(self, stagger_s: float) -> int:
        """Starts a new user within `stagger_s` seconds and returns its number."""
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
        """Closes the test's connection to the server; the process stays for the next test."""
        self._closed.clear()
        self._send("close")
        if not self._problem:
            self._closed.wait(_MAX_WAIT_S)

    def _send(self, *order: object) -> None:
        if not self._problem:
            try:
                self._socket.sendall(msgpack.packb(order))
            except OSError:
                self._release_all()

    def _read(self) -> None:
        messages = msgpack.Unpacker()
        try:
            while received := self._receive():
                messages.feed(received)
                for message in messages:
                    self._dispatch(*message)
        finally:
            self._release_all()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(_READ_BYTES)
        except OSError:
            return b""

    def _dispatch(self, word: str, *values: object) -> None:
        if word == "utterance":
            self._deliver(Utterance.from_message(*values))
        elif word == "ended":
            if values[0] in self._ended:  # else Locust has abandoned the user
                self._ended[values[0]].set()
        elif word == "prepared":
            self._prepared.set(values[0])
        elif word == "closed":
            self._closed.set()

    def _release_all(self) -> None:
        """Wakes all waiting greenlets when the process is gone."""
        if self._problem:
            return
        self._problem = "the process that plays the streams has ended; its messages are above"
        self._prepared.set(self._problem)
        self._closed.set()
        for ended in self._ended.values():
            ended.set()
        self._lost(self._problem)
