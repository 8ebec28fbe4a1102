"""The library, `transcribe`, `evaluate`, a server and a gateway find the same segments in the same audio."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import soundfile

from gateway.tests.contract.drivers import RivaFile
from penstock.cli import main
from penstock.frontend.audio_file import read_audio
from penstock.recognizer import StreamingRecognizer
from tests.helpers.golden import golden_utterances
from trials.server.gateway import RunningGateway
from trials.server.running import CONTEXT, RunningServer, running_gateway

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("uncompiled")]
RATE_HZ, SILENCE_MS = 16_000, 800
Segments = tuple[list[str], list[tuple[str, int, int]]]
"""Texts, and words with times in ms."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """Recordings with pauses of 1 s between them."""
    pause = np.zeros(RATE_HZ, np.float32)
    parts = [part for one in golden_utterances() for part in (read_audio(one.path, RATE_HZ), pause)]
    path = tmp_path_factory.mktemp("joined") / "joined.flac"
    soundfile.write(path, np.concatenate(parts), RATE_HZ, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def expected(bundled_model, recording) -> Segments:
    """The library's."""
    recognizer = StreamingRecognizer(bundled_model, CONTEXT, max_streams=1)
    with recognizer.open_stream(options={"endpoint_silence_ms": SILENCE_MS}) as stream:
        entries = stream.finish(read_audio(recording, RATE_HZ)).entries
    texts = [entry.text for entry in entries if entry.text]
    assert len(texts) >= len(golden_utterances()) - 1
    return texts, [tuple(word[:3]) for word in stream.words]


@pytest.fixture(scope="module")
def gateway(server: RunningServer) -> Iterator[RunningGateway]:
    with running_gateway(server, "--endpoint-silence-ms", str(SILENCE_MS)) as addresses:
        yield addresses


def test_of_transcribe(bundled_model, recording, expected, capsys):
    context = ",".join(map(str, CONTEXT))
    flags = ["--model", str(bundled_model), "--context", context, "--endpoint-silence-ms", str(SILENCE_MS), "--json"]
    assert main(["transcribe", *flags, str(recording)]) == 0
    document = json.loads(capsys.readouterr().out)
    texts = [segment["text"] for segment in document["segments"] if segment["text"]]
    assert (texts, [(word["word"], word["start_ms"], word["end_ms"]) for word in document["words"]]) == expected


@pytest.mark.parametrize("where", ["in this process", "at a server"])
def test_of_evaluate(server: RunningServer, bundled_model, recording, expected, tmp_path, where):
    """The report has the text of all segments."""
    manifest, report = tmp_path / "manifest.jsonl", tmp_path / "report.json"
    manifest.write_text(json.dumps({"audio_filepath": str(recording), "text": "a reference"}) + "\n")
    own = ["--model", str(bundled_model), "--context", ",".join(map(str, CONTEXT)), "--processes", "1"]
    flags = ["--url", server.url("grpc")] if where == "at a server" else own
    options = ["--endpoint-silence-ms", str(SILENCE_MS), "--json", str(report)]
    assert main(["evaluate", *flags, *options, str(manifest)]) == 0
    (result,) = json.loads(report.read_text())["results"]
    assert [each["hypothesis"] for each in result["utterances"]] == [" ".join(expected[0])]


def test_of_openai_through_a_gateway(gateway: RunningGateway, recording, expected):
    fields = {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "segment"]}
    url = f"http://{gateway.http}/v1/audio/transcriptions"
    response = httpx2.post(url, files={"file": recording.read_bytes()}, data=fields, timeout=60)
    body = response.json()
    texts = [segment["text"] for segment in body["segments"]]
    words = [(word["word"], round(1000 * word["start"]), round(1000 * word["end"])) for word in body["words"]]
    assert (texts, words) == expected


async def test_of_riva_through_a_gateway(gateway: RunningGateway, recording, expected):
    outcome = await RivaFile.of(gateway, read_audio(recording, RATE_HZ), key=None)
    assert (outcome.texts, outcome.words) == expected
