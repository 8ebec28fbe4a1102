"""Starting, watching and stopping a real server, with a small model of its own."""

import contextlib
import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from penstock.frontend.audio_file import read_audio
from penstock.serving.health import probe
from penstock.serving.launch import Ports, ServerOptions
from penstock.serving.model_repository import SPEAKER_ENSEMBLE
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
from penstock.serving.watchdog import find_model_processes
from penstock_client.batched.rows import END, START, Row
from tests.helpers.golden import golden_utterances
from tests.helpers.throwaway import write_repository
from trials.server.raw_stream import BatchedConnection, BatchedRawStream, RawStream, errors_of
from trials.server.running import processes, wait_until_gone

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def server(repository):
    options = ServerOptions(repository, drain_s=1, environment={"PENSTOCK_MODEL": "/some/bundle"})
    with TritonServer(find_triton(), options) as server:
        yield server


def http_address(server: TritonServer) -> str:
    return f"127.0.0.1:{server.ports.http}"


def http_status(server: TritonServer, method: str, path: str, body: str | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.http, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        return connection.getresponse().status


def shared_memory_of(group: int) -> list[str]:
    """Files in /dev/shm that processes of the group have open or mapped."""
    maps = "".join(Path(f"/proc/{process}/maps").read_text() for process in processes(group))
    return sorted(set(re.findall(r"/dev/shm/\S+", maps)))


class GrpcStream:
    """One audio stream over gRPC."""

    def __init__(self, server: TritonServer, name: str):
        self._name = name
        self._replies: queue.Queue = queue.Queue()
        self._client = triton_grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}")
        self._client.start_stream(lambda result, error: self._replies.put(error or result))

    def send(self, start: bool = False, end: bool = False):
        audio = triton_grpc.InferInput("AUDIO", [1, 0], "FP32")
        audio.set_data_from_numpy(np.zeros((1, 0), np.float32))
        self._client.async_stream_infer("asr", [audio], sequence_id=self._name, sequence_start=start, sequence_end=end)
        return self._replies.get(timeout=60)

    def close(self) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def test_it_answers_and_the_models_find_what_they_need(server):
    assert probe(http_address(server)).is_healthy
    with GrpcStream(server, "a") as stream:
        about = json.loads(stream.send(start=True).as_numpy("TEXT")[0, 0])
        assert stream.send(end=True).as_numpy("IS_FINAL").tolist() == [[True]]
    assert about["prefix"] == sys.prefix  # this interpreter's packages
    assert Path(about["penstock"]).samefile(Path(__file__).parents[2] / "src" / "penstock" / "__init__.py")
    assert about["PENSTOCK_MODEL"] == "/some/bundle"
    assert about["OMP_NUM_THREADS"] == "1"
    assert os.stat(about["PENSTOCK_RUNTIME_DIR"]).st_mode & 0o077 == 0
    assert not Path(about["directory"]).samefile(Path.cwd())  # the stub imports from there first


def test_it_listens_on_loopback_only(server):
    for port in server.ports:
        socket.create_connection(("127.0.0.1", port), 60).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 60)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v2/repository/index", "{}"),
        ("POST", "/v2/repository/models/asr/unload", "{}"),
        ("GET", "/v2/logging", None),
        ("POST", "/v2/logging", '{"log_file": "/tmp/x"}'),
        ("POST", "/v2/trace/setting", '{"trace_file": "/tmp/x"}'),
        ("GET", "/v2/systemsharedmemory/status", None),
        ("POST", "/v2/systemsharedmemory/region/x/register", '{"key": "/x", "offset": 0, "byte_size": 4}'),
        ("GET", "/v2/cudasharedmemory/status", None),
    ],
)
def test_dangerous_interfaces_are_closed_over_http(server, method, path, body):
    assert http_status(server, method, path, body) == http.client.FORBIDDEN
    assert http_status(server, "GET", "/v2/models/stats") == http.client.OK


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.get_model_repository_index(),
        lambda client: client.unload_model("asr"),
        lambda client: client.get_log_settings(),
        lambda client: client.get_trace_settings(),
        lambda client: client.register_system_shared_memory("x", "/x", 4),
        lambda client: client.get_cuda_shared_memory_status(),
    ],
)
def test_dangerous_interfaces_are_closed_over_grpc(server, call):
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="restricted"):
            call(client)


def test_not_even_the_secret_on_the_command_line_opens_them(server):
    command = Path(f"/proc/{server.process_id}/cmdline").read_text()
    key, secret = re.search(r"--http-restricted-api=[\w,-]+:([\w-]+)=([^\0]+)", command).groups()
    with socket.create_connection(("127.0.0.1", server.ports.http), 60) as connection:
        connection.sendall(f"GET /v2/logging HTTP/1.1\r\nHost: x\r\n{key}: {secret}\r\n\r\n".encode())
        assert not connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_stop_drains_and_leaves_nothing_behind(repository):
    server = TritonServer(find_triton(), ServerOptions(repository, drain_s=60))
    with server, GrpcStream(server, "live") as stream:
        group = server.process_id
        about = json.loads(stream.send(start=True).as_numpy("TEXT")[0, 0])
        files = shared_memory_of(group)
        outcome: queue.Queue = queue.Queue()
        threading.Thread(target=lambda: outcome.put(server.stop())).start()
        while probe(http_address(server), 60).is_healthy:
            time.sleep(0.05)
        assert stream.send(end=True).as_numpy("IS_FINAL").tolist() == [[True]]
        stream.close()
        assert outcome.get(timeout=120) == (0, 0)  # no table of streams: Triton has waited
    assert processes(group) == []
    assert len(files) == 1
    assert not any(map(os.path.exists, [*files, about["PENSTOCK_RUNTIME_DIR"]]))


def test_stop_cuts_streams_off_that_do_not_end_and_frees_the_ports(repository):
    """The server that has the ports then reports a killed model by the probe, while Triton is ready, and its end."""
    server = TritonServer(find_triton(), ServerOptions(repository, drain_s=1))
    with server, GrpcStream(server, "endless") as stream:
        group = server.process_id
        stream.send(start=True)
        server.stop()
    assert wait_until_gone(group)
    with TritonServer(find_triton(), ServerOptions(repository, server.ports, drain_s=1)) as again:
        with GrpcStream(again, "a") as stream:
            assert stream.send(start=True, end=True).as_numpy("IS_FINAL").tolist() == [[True]]
        (model_process,) = set(processes(again.process_id)) - {again.process_id}
        os.kill(model_process, signal.SIGKILL)
        health = probe(http_address(again), timeout_s=60)
        assert not health.is_healthy
        assert "not healthy" in health.reason
        assert http_status(again, "GET", "/v2/health/ready") == http.client.OK
        os.kill(again.process_id, signal.SIGKILL)
        while not again.has_ended():
            time.sleep(0.02)
        assert again.end_reason().endswith("(ended by SIGKILL)")


PARENT = """
import sys, time
from pathlib import Path
from penstock.serving.launch import ServerOptions
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import find_triton
with TritonServer(find_triton(), ServerOptions(Path(sys.argv[1]))) as server:
    print(server.process_id, server.ports.http, flush=True)
    time.sleep(600)
"""


def test_a_killed_parent_leaves_nothing_behind(repository):
    command = [sys.executable, "-c", PARENT, str(repository)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        group = int(parent.stdout.readline().split()[0])
        files = shared_memory_of(group)
        runtime = Path(f"/proc/{group}/environ").read_text().partition("PENSTOCK_RUNTIME_DIR=")[2].partition("\0")[0]
        assert Path(runtime).is_dir()
        parent.kill()
    assert wait_until_gone(group)
    deadline = time.monotonic() + 60
    while any(map(os.path.exists, [*files, runtime])) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(os.path.exists, [*files, runtime]))


@contextlib.contextmanager
def serve_command(*arguments: str):
    """`penstock serve` on free ports; killed if it is still there at the end."""
    ports = [f"--{name}-port=0" for name in Ports._fields]
    command = [sys.executable, "-m", "penstock.cli", "serve", *ports, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen, word: str) -> str:
    """Output up to and including the line with `word`."""
    text = ""
    while word not in text:
        line = process.stdout.readline()
        assert line, f"{word!r} is not in {text!r}; {process.communicate()[1]}"
        text += line
    return text


def server_of(launcher: int) -> int:
    """Process id of the tritonserver that `penstock serve` has started: the child that has model processes."""
    (server,) = (child.pid for child in psutil.Process(launcher).children() if find_model_processes(child.pid))
    return server


def test_serve_fails_with_the_models_reason(repository, bundled_model):
    arguments = ("--model", str(bundled_model), "--max-streams", "13")
    with serve_command(*arguments, "--model-repository", str(repository)) as process:
        assert process.wait(120) == 1
        assert "ready" not in process.stdout.read()
        message = 'SERVER_FAILED: the server did not start: model asr: ValueError: 13 is "unlucky"'
        assert f"penstock: error: {message}\n" in process.stderr.read()


def test_serve_says_what_it_serves_and_starts_again_after_a_crash_on_the_same_ports(repository, bundled_model):
    options = ("--context", "70,6", "--max-streams", "5", "--restart")
    with serve_command("--model", str(bundled_model), *options, "--model-repository", str(repository)) as process:
        address = re.search(r"HTTP (\S+),", output := read_until(process, "ready"))[1]
        (model_process,) = find_model_processes(server_of(process.pid))
        model_process.kill()
        assert "an4-rnnt-hybrid: RNN-T + CTC, context [70,6], chunks of 560 ms" in output
        assert re.search(r"5 streams, 0\.\d+ MB each, decoders greedy, alsd, aes, ctc", output)
        read_until(process, "ready")
        assert probe(address, 60).is_healthy
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert process.stdout.read().endswith(" server: stopped\n")
        lost = r"error +server: SERVER_FAILED: the server was stopped: model asr .* has ended by SIGKILL; .* in 1 s"
        assert len(re.findall(lost, process.stderr.read())) == 1


SECOND = np.zeros(16000, np.float32)


@contextlib.contextmanager
def streaming_client(url: str, name: str):
    """A client that sends 100 ms of audio to `asr_batch` every 100 ms until the end of the block, then ends its stream.

    Each request is answered, and the last reply covers all audio.
    """
    is_started, is_over, last = threading.Event(), threading.Event(), queue.Queue()

    def send() -> None:
        sent = 2 * len(SECOND)
        with BatchedRawStream(url, name) as stream:
            stream.send(SECOND, start=True)
            is_started.set()
            while not is_over.wait(0.1):
                stream.send(SECOND[:1600])
                sent += 1600
            last.put((stream.send(SECOND, end=True), sent))

    thread = threading.Thread(target=send)
    thread.start()
    assert is_started.wait(60)
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)
    reply, sent = last.get(timeout=60)
    assert reply.is_final
    assert reply.processed_s == pytest.approx(sent / 16_000, abs=0.01)


def speakers_of(url: str, samples: np.ndarray) -> list[int] | Exception:
    """The speakers of a stream's words; the error of a request that fails as a whole."""
    row = Row(1, samples, START | END, '{"speakers": "on"}')
    with BatchedConnection(url, uuid.uuid4().hex, SPEAKER_ENSEMBLE) as connection:
        connection.send([row])
        reply = connection.receive()
    return reply if isinstance(reply, Exception) else reply.as_numpy("WORD_SPEAKERS")[0].tolist()


def test_a_real_server_gets_its_speaker_model_back_logs_its_streams_and_drains_them(
    bundled_model, speaker_bundle, uncompiled
):
    """One server for the whole life of `penstock serve`, because a real one takes many seconds to start.

    Streams of `asr_batch` lose nothing; no slot of those that had speakers waits for the idle limit.
    """
    recording = read_audio(golden_utterances()[0].path, 16_000)
    arguments = ("--model", str(bundled_model), "--speakers", str(speaker_bundle.directory), "--device", "cpu")
    limits = ("--max-streams", "2", "--drain-seconds", "600", "--log-format", "json")
    with serve_command(*arguments, *limits) as process:
        events = [json.loads(line) for line in read_until(process, '"ready').splitlines()]
        assert any("context [70,6] (default; --context also takes [70,13] " in event["message"] for event in events)
        url = f"127.0.0.1:{events[-1]['grpc']}"
        server = server_of(process.pid)
        before = find_model_processes(server)
        with streaming_client(url, "words"):
            assert all(speakers_of(url, recording))
            with BatchedConnection(url, "lost", SPEAKER_ENSEMBLE) as connection:
                row = Row(1, SECOND, START, '{"speakers": "on"}')
                assert not errors_of(connection.ask([row]))
                (lost,) = (each for each, name in find_model_processes(server).items() if name == "speakers")
                lost.kill()
                connection.send([Row(1, SECOND)])
                assert isinstance(connection.receive(), InferenceServerException)
                # The stream's slots are free for others, at the latest once the model is there again.
                assert "model speakers is ready again" in read_until(process, "again")
                assert all(speakers_of(url, recording))
                (error,) = errors_of(connection.ask([Row(1, SECOND)])).values()
                assert error.startswith(("STREAM_NOT_OPEN: ", "STREAM_LOST: "))
            with triton_grpc.InferenceServerClient(url) as other, pytest.raises(InferenceServerException):
                other.unload_model("speakers")
        assert "x-penstock-loading=\n\n" in Path(f"/proc/{server}/cmdline").read_text()
        changed = set(before.items()) ^ set(find_model_processes(server).items())
        assert [name for _, name in changed] == ["speakers", "speakers"]
        with RawStream(url, "ended") as stream:
            stream.send(SECOND, start=True)
            stream.send(SECOND, end=True)
        with RawStream(url, "bad") as stream, pytest.raises(InferenceServerException, match="OPTION_INVALID"):
            stream.send(SECOND, start=True, parameters={"decoder": "none"}, request_id="request-7")
        with RawStream(url, "silent") as silent, streaming_client(url, "live"):
            silent.send(SECOND, start=True)
            process.send_signal(signal.SIGINT)
            waiting = json.loads(read_until(process, "waiting").splitlines()[-1])["message"]
            assert re.fullmatch(r"waiting up to 600 s for \d streams?; Ctrl-C again to stop now", waiting)
            with RawStream(url, "late") as late, pytest.raises(InferenceServerException, match="SERVER_DRAINING: "):
                late.send(SECOND, start=True)
        assert process.wait(120) == 0  # the silent stream is not waited for
        assert json.loads(process.stdout.read())["message"] == "stopped; 1 stream ended or moved, 1 stream cut off"
        log = [json.loads(line) for line in process.stderr.read().splitlines() if line.startswith('{"time": ')]
    for model in ("features", "encoder", "decoder"):
        steps = [event["message"].split()[0] for event in log if event["source"] == model and "elapsed_s" in event]
        assert steps == ["libraries", "loaded:", "warmed"]
    assert not [event for event in log if "pinned" in event["message"]]
    ended = {event["stream"]: event for event in log if event["message"] == "stream ended"}
    ended_by = {"ended": "end", "1 of client 'live'": "end", "silent": "SERVER_DRAINING"}
    assert {name: event["ended_by"] for name, event in ended.items()}.items() >= ended_by.items()
    line = ended["ended"]
    assert (line["audio_s"], line["segments"], line["decoder"], line["level"]) == (2.0, 1, "greedy", "info")
    assert 0 < line["latency_p50_ms"] <= line["latency_max_ms"]
    (rejected,) = [event for event in log if event.get("stream") == "bad"]
    assert (rejected["code"], rejected["request"], rejected["level"]) == ("OPTION_INVALID", "request-7", "warning")
