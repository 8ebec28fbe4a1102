"""`penstock-client --finalize-every` and `--finalize-on-enter`."""

import io
import json
import os
import sys

import numpy as np
import pytest

from client.tests.helpers.fake_sounddevice import FakeSounddevice
from client.tests.helpers.fakes import text_of
from penstock_client.audio.microphone import Microphone
from penstock_client.cli.main import main

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


@pytest.fixture
def keyboard(monkeypatch):
    """Writes to standard input."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda: os.write(writer, b"\n")
    os.close(writer)


@GRPC_ONLY
def test_enter_ends_a_segment_after_the_next_request(run, monkeypatch, samples, keyboard):
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSounddevice(samples))
    spoken = Microphone.__iter__

    def typing(self):
        for number, block in enumerate(spoken(self)):
            if number == 7:
                keyboard()
            yield block

    monkeypatch.setattr(Microphone, "__iter__", typing)
    document = json.loads(run("--microphone", "--finalize-on-enter", "--json")[1])
    assert [segment["text"] for segment in document["segments"]] == [
        text_of(8 * 1600),
        text_of(samples.size - 8 * 1600),
    ]


def closed_file():
    file = open(os.devnull)  # noqa: SIM115
    file.close()
    return file


@pytest.mark.parametrize("stdin", [lambda: None, closed_file, io.StringIO], ids=["none", "closed", "no descriptor"])
def test_enter_needs_an_input(capsys, monkeypatch, stdin):
    monkeypatch.setattr(sys, "stdin", stdin())
    with pytest.raises(SystemExit) as exit_:
        main(["--microphone", "--finalize-on-enter"])
    assert exit_.value.code == 2
    assert "--finalize-on-enter reads standard input, which is closed" in capsys.readouterr().err
