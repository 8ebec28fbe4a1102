"""The Triton model `speakers` of a real server, beside the three of the recognizer."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from penstock.frontend.audio_file import read_audio
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.diarizer import Diarizer
from penstock_client import Client
from tests.helpers.golden import golden_utterances
from trials.server.resources import read_metrics
from trials.server.running import RunningServer, running_server

pytestmark = pytest.mark.server
STREAMS = 3
ROOT = Path(__file__).parents[2]
PAGES = ("docs/operations.md", "docker/grafana/dashboards/penstock.json")


@pytest.fixture(scope="module")
def served(bundled_model: Path, speaker_bundle: SpeakerCheckpoint) -> Iterator[RunningServer]:
    more = {"PENSTOCK_SPEAKERS": str(speaker_bundle.directory), "PENSTOCK_SPEAKER_STREAMS": str(STREAMS)}
    yield from running_server(bundled_model, max_streams=4, idle_s=30.0, more=more)


def send(
    client: triton_grpc.InferenceServerClient, name: str | int, samples: np.ndarray, flags: str = "", **options: Any
) -> tuple[int, np.ndarray]:
    """The first frame and the probabilities [N, K] that a request gets; flags: s begins and e ends the stream."""
    audio = triton_grpc.InferInput("AUDIO", [1, len(samples)], "FP32")
    audio.set_data_from_numpy(samples[None])
    result = client.infer(
        "speakers", [audio], sequence_id=name, sequence_start="s" in flags, sequence_end="e" in flags,
        parameters=options or None, client_timeout=60,
    )  # fmt: skip
    ((speakers,),) = result.as_numpy("SPEAKERS")
    ((first,),) = result.as_numpy("FIRST_FRAME")
    return int(first), result.as_numpy("PROBABILITIES").reshape(-1, speakers)


def test_speakers_are_served_beside_words(served: RunningServer, speaker_bundle: SpeakerCheckpoint):
    """Streams of several modes and kinds of ids, and a stream of words; then what is rejected."""
    samples = np.concatenate([read_audio(one.path, 16000) for one in golden_utterances()[:3]])
    whole = Diarizer(speaker_bundle).probabilities(torch.from_numpy(samples)).numpy()
    before = read_metrics(served)
    streams: dict[str | int, str] = {"a": "file", 7: "low_latency", "c": "ultra_low_latency"}
    found: dict[str | int, list[np.ndarray]] = {name: [] for name in streams}
    with triton_grpc.InferenceServerClient(served.url("grpc")) as client, Client(served.url("grpc")) as words:
        parts = np.split(samples, range(20_000, len(samples), 20_000))
        for number, part in enumerate(parts):
            for name, mode in streams.items():
                flags = "s" * (number == 0) + "e" * (number == len(parts) - 1)
                first, values = send(client, name, part, flags, **({"speaker_mode": mode} if number == 0 else {}))
                assert first == sum(map(len, found[name]))
                found[name].append(values)
        assert words.transcribe(samples).text
        for name in streams:
            assert sum(map(len, found[name])) == len(samples) // 160
        np.testing.assert_allclose(np.concatenate(found["a"]), whole, rtol=0, atol=1e-5)
        after = read_metrics(served)
        assert after["speaker_streams_started_total"] - before["speaker_streams_started_total"] == STREAMS
        assert after["speaker_chunks_total"] >= after["speaker_steps_total"] > before["speaker_steps_total"]
        assert after["speaker_busy_seconds_total"] > 0
        for name in range(1, STREAMS + 1):
            send(client, name, samples[:100], "s")
        rejected = {
            "STREAM_LIMIT": (8, "s", {}),
            "STREAM_NOT_OPEN": (9, "", {}),
            "OPTION_INVALID": (1, "", {"speaker_mode": "file"}),
        }
        for code, (name, flags, options) in rejected.items():
            with pytest.raises(InferenceServerException) as error:
                send(client, name, samples[:100], flags, **options)
            assert f"{code}: " in error.value.message()
        for name in range(1, STREAMS + 1):
            _, values = send(client, name, samples[:0], "e")
            assert len(values) == 0  # 100 samples are no frame


def test_the_documents_and_the_dashboard_name_the_metrics_that_are_shown(served: RunningServer):
    shown = {f"penstock_{name}" for name in read_metrics(served) if name.startswith("speaker_")}
    guide, dashboard = ((ROOT / path).read_text(encoding="utf-8") for path in PAGES)
    rows = re.findall(r"^\| (`penstock_speaker_[^|]*) \|", guide, re.MULTILINE)
    assert set(re.findall(r"`(penstock_speaker_\w+)`", " ".join(rows))) == shown
    assert set(re.findall(r"penstock_speaker_\w+", dashboard)) <= shown
