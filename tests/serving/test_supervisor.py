"""The life of a server under `penstock serve`, with a server that fails as the test says."""

import json
import re
import signal
import sys
import threading

import pytest

from penstock.errors import PortError, ServerCrashError, ServerError, SettingError
from penstock.serving import supervisor
from penstock.serving.drain import Drained
from penstock.serving.launch import Ports
from penstock.serving.supervisor import MAX_RESTARTS, STABLE_S, Backoff, Console, serve_until_signal


class Watch:
    """No model is ever lost."""

    def __init__(self, *_):
        self.loss = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Server:
    """Each entry of `fates` is one run: an error at its start, "crash" once it is ready, or "stop" by a signal."""

    ports, process_id = Ports(1, 2, 3), 4

    def __init__(self, *fates):
        self.fates, self.starts, self.killed, self.stops = list(fates), 0, 0, []
        self.is_killed = threading.Event()

    def url(self, port):
        return f"127.0.0.1:{port}"

    def start_until_ready(self, is_cancelled, on_wait, on_retry):
        self.fate = self.fates[self.starts]
        self.starts += 1
        if isinstance(self.fate, Exception):
            raise self.fate
        on_wait()
        return not is_cancelled()

    def has_ended(self):
        if self.fate in ("stop", "stop twice"):
            signal.raise_signal(signal.SIGTERM)
        if self.fate == "stop twice":
            signal.raise_signal(signal.SIGTERM)
            assert self.is_killed.wait(60)
        self.fate = "crash" if self.fate == "crash" else "signaled"
        return self.fate == "crash" or self.killed > 0

    def check_files(self):
        return ()

    def end_reason(self):
        return "it crashed"

    def stop(self, drain=True, on_wait=None):
        self.stops.append(drain)
        if drain:
            on_wait(2)
        return Drained(2, 1) if drain else Drained()

    def kill(self):
        self.killed += 1
        self.is_killed.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(supervisor, "Watchdog", Watch)
    monkeypatch.setattr(supervisor, "SpeakerRestarts", Watch)
    monkeypatch.setattr(supervisor, "_POLL_S", 0.01)
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(supervisor, "_PROGRESS_S", 600.0)


STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "


def without_time(text: str) -> list[str]:
    """Lines of the log; each must have a time."""
    found = [re.fullmatch(f"{STAMP}(.*)", line) for line in text.splitlines()]
    return [" ".join(line[1].split()) for line in found]


def test_a_signal_drains_and_says_for_whom(capsys):
    server = Server("stop")
    serve_until_signal(server, Console(), drain_s=8)
    assert server.stops == [True]
    ready, *later = without_time(capsys.readouterr().out)
    addresses = r"gRPC 127\.0\.0\.1:2, HTTP 127\.0\.0\.1:1, metrics http://127\.0\.0\.1:3/metrics"
    assert re.fullmatch(rf"info server: ready after \d+ s: {addresses}", ready)
    assert later == [
        "info server: waiting up to 8 s for 2 streams; Ctrl-C again to stop now",
        "info server: stopped; 1 stream ended or moved, 1 stream cut off",
    ]


def test_a_second_signal_kills():
    server = Server()
    with supervisor._stop_signals(server) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(60)
        assert server.killed == 0
        signal.raise_signal(signal.SIGINT)
        assert server.is_killed.wait(60)


def test_a_signal_may_come_while_the_main_thread_holds_the_lock_of_the_event():
    def interrupt(frame, event, argument):
        if frame.f_code is threading.Condition.wait.__code__:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)

    with supervisor._stop_signals(Server()) as stop:
        sys.settrace(interrupt)
        assert stop.wait(60)


def test_output_without_a_reader_ends_no_stream(monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Gone())
    server = Server("stop")
    serve_until_signal(server, Console(), drain_s=8)
    assert server.stops == [True], "drained, not killed"


@pytest.mark.parametrize("restarts", [False, True])
def test_two_signals_at_once_are_a_stop_and_no_crash(restarts, capsys):
    server = Server("stop twice")
    serve_until_signal(server, Console(), drain_s=8, restarts=restarts)
    assert (server.starts, server.killed, server.stops) == (1, 1, [False])
    assert without_time(capsys.readouterr().out)[1:] == ["info server: stopped"]


def test_without_restarts_a_crash_is_an_error():
    server = Server("crash")
    with pytest.raises(ServerError, match="exited unexpectedly: it crashed"):
        serve_until_signal(server, Console(), 8)
    assert server.stops == [False]


def test_a_crashed_server_is_started_again(capsys):
    server = Server("crash", PortError("http port 1 is in use"), "stop")
    serve_until_signal(server, Console(), 8, restarts=True)
    assert server.starts == 3
    assert without_time(capsys.readouterr().err) == [
        "error server: SERVER_FAILED: the server exited unexpectedly: it crashed; starting again in 0.001 s",
        "error server: PORT_UNAVAILABLE: http port 1 is in use; starting again in 0.002 s",
    ]


def test_a_first_start_that_crashes_is_repeated():
    server = Server(ServerCrashError("it crashed"), PortError("http port 1 is in use"), "stop")
    serve_until_signal(server, Console(), 8, restarts=True)
    assert server.starts == 3


@pytest.mark.parametrize("error", [SettingError("no"), ServerError("no"), PortError("no")])
def test_a_server_that_never_was_ready_is_not_started_again(error):
    server = Server(error)
    with pytest.raises(type(error)):
        serve_until_signal(server, Console(), 8, restarts=True)
    assert server.starts == 1


def test_a_rejected_setting_ends_the_restarts():
    server = Server("crash", SettingError("no"))
    with pytest.raises(SettingError):
        serve_until_signal(server, Console(), 8, restarts=True)


def test_a_server_that_crashes_each_time_is_given_up(monkeypatch):
    monkeypatch.setattr(supervisor, "_LONGEST_WAIT_S", 0.002)
    server = Server(*["crash"] * (MAX_RESTARTS + 1))
    with pytest.raises(ServerError):
        serve_until_signal(server, Console(), 8, restarts=True)
    assert server.starts == MAX_RESTARTS + 1


class StoppingConsole(Console):
    """A signal comes as soon as a restart is announced."""

    def say(self, message, level="info", **fields):
        super().say(message, level, **fields)
        if "starting again" in message:
            signal.raise_signal(signal.SIGTERM)


def test_a_stop_during_the_wait_for_a_restart(monkeypatch, capsys):
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 600.0)
    monkeypatch.setattr(supervisor, "_LONGEST_WAIT_S", 600.0)
    serve_until_signal(Server("crash"), StoppingConsole(), 8, restarts=True)
    assert capsys.readouterr().out.endswith(" server: stopped\n")


def test_waits_double_up_to_a_minute_and_begin_again_after_a_stable_run(monkeypatch):
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 1.0)
    backoff = Backoff()
    waits = [backoff.next_wait_s(1.0) for _ in range(MAX_RESTARTS)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert backoff.next_wait_s(1.0) is None
    assert backoff.next_wait_s(STABLE_S) == 1


def test_a_slow_start_says_how_long_it_takes(monkeypatch, capsys):
    monkeypatch.setattr(supervisor, "_PROGRESS_S", 0.0)
    serve_until_signal(Server("stop"), Console(), 8)
    assert re.search(
        r"server: still starting after \d+ s \(limit 600 s\), [\d.]+ [MG]B of memory", capsys.readouterr().out
    )


def test_json_lines_have_the_figures(capsys):
    Console("json").say("ready", start_s=1.25, grpc=8001)
    event = json.loads(capsys.readouterr().out)
    assert (event["source"], event["message"], event["start_s"], event["grpc"]) == ("server", "ready", 1.25, 8001)


class Gateway:
    """Is ready at the third question."""

    asked = stops = 0

    def is_ready(self):
        self.asked += 1
        return self.asked == 3

    def invitation(self):
        return ["try: curl"]

    def stop(self):
        self.stops += 1


def test_the_server_is_ready_when_the_gateway_has_found_it(capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "_GATEWAY_POLL_S", 0.0)
    server, gateway = Server("stop"), Gateway()
    stops = server.has_ended
    monkeypatch.setattr(server, "has_ended", lambda: gateway.asked == 3 and stops())
    serve_until_signal(server, Console(), 8, gateway=gateway)
    assert (gateway.asked, gateway.stops) == (3, 1)
    ready, invitation, *_ = without_time(capsys.readouterr().out)
    assert ready.startswith("info server: ready after")
    assert invitation == "info server: try: curl"


def test_a_gateway_that_does_not_get_ready_is_named(capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "_GATEWAY_LIMIT_S", -1.0)
    server, gateway = Server("stop"), Gateway()
    stops = server.has_ended
    monkeypatch.setattr(server, "has_ended", lambda: gateway.asked > 0 and stops())
    serve_until_signal(server, Console(), 8, gateway=gateway)
    assert without_time(capsys.readouterr().err) == ["warning server: the gateway is not ready after -1 s"]
