"""The requests of docs/http.md, verbatim, and the two clients without dependencies, against a server."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock_client import Client
from tests.helpers.golden import golden_utterances
from trials.server.running import RunningServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```\n(.*?)^```", (ROOT / "docs" / "http.md").read_text(encoding="utf-8"), re.M | re.S)
CONVERT, BINARY, LIVE, WRONG_OPTION, _ERROR = BLOCKS
DEADLINE_S = 120
FIRST_CHUNK_SAMPLES, CHUNK_SAMPLES = 7880, 8960


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Has speech.wav and speech.f32, the file that `CONVERT` makes of it."""
    folder = tmp_path_factory.mktemp("http")
    samples, rate_hz = soundfile.read(golden_utterances()[0].path, dtype="float32")
    soundfile.write(folder / "speech.wav", samples, rate_hz, subtype="PCM_16")
    samples.astype("<f4").tofile(folder / "speech.f32")
    return folder


@pytest.fixture(scope="module")
def text(server: RunningServer, folder: Path) -> str:
    with Client(server.url("grpc")) as client:
        return client.transcribe(str(folder / "speech.wav")).text


@pytest.fixture(scope="module")
def address(server: RunningServer) -> str:
    """HOST:PORT of a server."""
    return server.url("http")


def paste(block: str, address: str, folder: Path) -> list[dict]:
    """Runs a block of the page and returns the JSON documents that it prints."""
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    block = block.replace("localhost:8000", address).replace("sleep 0.5", "sleep 0.01")
    command = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    documents, decoder, rest = [], json.JSONDecoder(), done.stdout.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        documents.append(document)
        rest = rest[end:].strip()
    return documents


def output(document: dict, name: str) -> list:
    return next(one["data"] for one in document["outputs"] if one["name"] == name)


def test_ffmpeg_makes_the_samples(folder: Path):
    if not shutil.which("ffmpeg"):
        pytest.skip("ffmpeg is not installed")
    expected = np.fromfile(folder / "speech.f32", "<f4")
    subprocess.run(["bash", "-c", CONVERT], cwd=folder, timeout=DEADLINE_S, check=True)
    np.testing.assert_allclose(np.fromfile(folder / "speech.f32", "<f4"), expected, atol=2**-15)


def test_a_whole_recording_as_binary(address: str, folder: Path, text: str):
    (reply,) = paste(BINARY, address, folder)
    assert output(reply, "TEXT") == [text]
    assert output(reply, "WORDS") == text.split()
    assert len(output(reply, "WORD_START_MS")) == len(output(reply, "WORD_END_MS")) == len(text.split())


def test_a_live_stream(address: str, folder: Path, text: str):
    *parts, last = paste(LIVE, address, folder)
    further_bytes = (folder / "speech.f32").stat().st_size - 4 * FIRST_CHUNK_SAMPLES
    assert len(parts) == 1 + -(-further_bytes // (4 * CHUNK_SAMPLES))
    assert output(last, "TEXT") == [text] and output(last, "IS_FINAL") == [True]
    assert all(text.startswith(output(part, "TEXT")[0]) for part in parts)


def test_an_error_has_a_code(address: str, folder: Path):
    (reply,) = paste(WRONG_OPTION, address, folder)
    assert reply["error"].removeprefix("in ensemble 'asr', ").startswith("OPTION_INVALID: ")


@pytest.mark.parametrize(("program", "example"), [(sys.executable, "http_stream.py"), ("node", "http_stream.mjs")])
def test_the_clients_without_dependencies(program: str, example: str, address: str, folder: Path, text: str):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    command = [program, ROOT / "client" / "examples" / example, f"http://{address}", "speech.wav"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    *partial, final = done.stdout.splitlines()
    assert final == f"final: {text}"
    assert len(partial) == -(-soundfile.info(folder / "speech.wav").frames // 8_000)
