"""`penstock-client --finalize-every`."""

import json
import sys

import numpy as np
import pytest

from client.tests.helpers.fake_sounddevice import FakeSounddevice
from client.tests.helpers.fakes import text_of

GRPC_ONLY = pytest.mark.parametrize("protocol", ["grpc"], indirect=True)


def test_a_file_is_split_into_segments_of_equal_length(run, audio_file, recognizer, samples):
    status, out, err = run(audio_file, "--finalize-every", "1", "--json")
    document = json.loads(out)
    sizes = (16_000, 16_000, 6_400)
    assert (status, err) == (0, "")
    assert [segment["text"] for segment in document["segments"]] == [text_of(size) for size in sizes]
    assert document["text"] == " ".join(text_of(size) for size in sizes)
    assert document["latency_ms"] >= 0
    ended = [request for request in recognizer.requests if request.parameters.get("finalize")]
    assert len(ended) == 2 and recognizer.requests[-1].is_end
    assert np.array_equal(np.concatenate([request.samples for request in recognizer.requests]), samples)


@GRPC_ONLY
def test_no_empty_segment_follows_audio_that_ends_with_one(run, audio_file):
    document = json.loads(run(audio_file, "--finalize-every", "1.2", "--json")[1])
    assert [segment["text"] for segment in document["segments"]] == [text_of(19_200)] * 2


@GRPC_ONLY
def test_segments_of_the_microphone(run, monkeypatch, samples):
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSounddevice(samples))
    document = json.loads(run("--microphone", "--finalize-every", "2", "--json")[1])
    assert [segment["text"] for segment in document["segments"]] == [text_of(32_000), text_of(6_400)]
