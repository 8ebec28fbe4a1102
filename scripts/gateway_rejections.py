"""Milliseconds from a new connection to a gateway's typed rejection, for each protocol and reason.

python -m scripts.gateway_rejections [--rounds 100]

The gateway is a process before a stand-in for a server. Its only key has one stream, which is held open.
"""

import argparse
import hashlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
import websockets
from websockets.sync.client import connect

from penstock.reporting import commit, date_utc, describe_hardware, percentiles_ms
from penstock_gateway.riva.proto import riva_asr_pb2 as riva

KEY, MODEL = "sk-test", "fake"
_METHOD = "/nvidia.riva.asr.RivaSpeechRecognition/"
_SERVER = """if True:
    from client.tests.helpers.fake_batch_server import BatchServer
    from client.tests.helpers.fakes import FakeRecognizer
    print(BatchServer(FakeRecognizer()).port, flush=True)
    input()"""
_FORM = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n%s\r\n' + (
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF\x26\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0'
    b"\x80\x3e\0\0\0\x7d\0\0\2\0\x10\0data\2\0\0\0\0\0\r\n--x--\r\n"
)


class Target(NamedTuple):
    """A gateway's process and its ports."""

    process: "subprocess.Popen[str]"
    http_port: int
    grpc_port: int


@contextmanager
def gateway() -> Iterator[Target]:
    """A gateway before the stand-in, which stops slowly."""
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        server = stack.enter_context(subprocess.Popen([sys.executable, "-c", _SERVER], **pipes))
        stack.callback(server.terminate)
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys"
        keys.write_text(f"test {hashlib.sha256(KEY.encode()).hexdigest()} 1\n")
        command = [
            sys.executable,
            "-m",
            "penstock_gateway",
            "--replicas",
            f"127.0.0.1:{server.stdout.readline().strip()}",
        ]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--timeout-s", "60"]
        command += ["--keys", str(keys), "--drain-seconds", "600"]
        with keys.with_name("log").open("w+") as log:
            process = stack.enter_context(subprocess.Popen(command, stderr=log, text=True))
            stack.callback(process.kill)
            while not (found := re.search(r":(\d+) \(OpenAI, Realtime\) and .*:(\d+) [^$]*is up", _read(log))):
                if process.poll() is not None:
                    raise SystemExit(_read(log))
                time.sleep(0.05)
            target = Target(process, int(found[1]), int(found[2]))
            while not _is_open(target.http_port):
                time.sleep(0.05)
            yield target


def _is_open(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def _read(file) -> str:
    file.seek(0)
    return file.read()


def openai(target: Target, key: str, model: str) -> str:
    """The code of a rejected upload."""
    connection = http.client.HTTPConnection("127.0.0.1", target.http_port, timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "multipart/form-data; boundary=x"}
    connection.request("POST", "/v1/audio/transcriptions", _FORM % model.encode(), headers)
    body = json.loads(connection.getresponse().read())
    connection.close()
    return body["error"]["code"]


def realtime(target: Target, key: str, model: str) -> str:
    """The code of a rejected handshake or `session.update`."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        with connect(f"ws://127.0.0.1:{target.http_port}/v1/realtime", additional_headers=headers) as connection:
            session = {"audio": {"input": {"transcription": {"model": model}}}}
            connection.send(json.dumps({"type": "session.update", "session": session}))
            while (event := json.loads(connection.recv()))["type"] != "error":
                pass
            return event["error"]["code"]
    except websockets.InvalidStatus as rejected:
        return json.loads(rejected.response.body)["error"]["code"]


def riva_stream(target: Target, key: str, model: str) -> str:
    """The code of a rejected stream."""
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    with grpc.insecure_channel(f"127.0.0.1:{target.grpc_port}", options=options) as channel:
        try:
            list(_stream(channel, iter([_configuration(model)]), key))
        except grpc.RpcError as error:
            return error.details().partition(":")[0].lower()
    return "none"


def _stream(channel: grpc.Channel, messages: Iterator[bytes], key: str):
    return channel.stream_stream(f"{_METHOD}StreamingRecognize")(
        messages, metadata=(("authorization", f"Bearer {key}"),), timeout=600
    )


def _configuration(model: str) -> bytes:
    config = {"config": {"model": model, "verbatim_transcripts": True}}
    return riva.StreamingRecognizeRequest(streaming_config=config).SerializeToString()


PROTOCOLS: dict[str, Callable[[Target, str, str], str]] = {
    "OpenAI": openai, "Realtime": realtime, "Riva": riva_stream,
}  # fmt: skip


def measure(target: Target, expected: str, rounds: int, key: str = KEY, model: str = MODEL) -> None:
    """Prints a row for each protocol. SystemExit for another answer than the expected one."""
    for name, reject in PROTOCOLS.items():
        times_s = []
        for _ in range(rounds):
            started_s = time.perf_counter()
            if (code := reject(target, key, model)) != expected:
                raise SystemExit(f"{name}: {code}, expected {expected}")
            times_s.append(time.perf_counter() - started_s)
        figures = " | ".join(f"{value:.1f}" for value in percentiles_ms(times_s).values())
        print(f"| {expected} | {name} | {figures} |", flush=True)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    print(f"{describe_hardware()}, {date_utc()}, commit {commit()}\n")
    print("| code | protocol | p50, ms | p95 | p99 | largest |\n|---|---|---|---|---|---|")
    with gateway() as target:
        measure(target, "invalid_api_key", rounds, key="sk-other")
        measure(target, "model_not_found", rounds, model="other")
        with grpc.insecure_channel(f"127.0.0.1:{target.grpc_port}") as channel:
            held = _held_stream(channel)
            measure(target, "streams_exhausted", rounds)
            target.process.send_signal(signal.SIGTERM)
            time.sleep(1)
            measure(target, "no_replica", rounds)
            held.cancel()


def _held_stream(channel: grpc.Channel):
    """A stream that goes on."""

    def messages() -> Iterator[bytes]:
        yield _configuration(MODEL)
        while True:
            yield riva.StreamingRecognizeRequest(audio_content=bytes(3200)).SerializeToString()
            time.sleep(0.1)

    stream = _stream(channel, messages(), KEY)
    stream.initial_metadata()  # the gateway has opened it
    return stream


if __name__ == "__main__":
    main()
