"""`penstock-client --interim --json`: one line per result as it arrives, then the file's document."""

import json
import sys
import time

import numpy as np
import pytest

from client.tests.helpers.fake_sounddevice import FakeSounddevice
from client.tests.helpers.fakes import RejectionError, expected
from penstock_client.audio.microphone import Microphone

KEYS = ["audio", "segment", "text", "language", "is_final", "audio_processed_s", "words"]


def lines_of(out):
    return [json.loads(line) for line in out.splitlines()]


def test_each_result_is_a_line_before_the_document(run, audio_file, samples):
    status, out, err = run(audio_file, "--interim", "--json", "--request-ms", "200")
    *results, document = lines_of(out)
    assert (status, err) == (0, "")
    assert [list(result) for result in results] == [KEYS] * 12
    assert [result["audio_processed_s"] for result in results] == [round(0.2 * n, 3) for n in range(1, 13)]
    texts = [result["text"] for result in results]
    assert texts == [expected(samples[: 3200 * n]).text for n in range(1, 13)]
    assert [result["is_final"] for result in results] == [False] * 11 + [True]
    assert {result["audio"] for result in results} == {document["audio"]} == {str(audio_file)}
    assert [word for result in results for word in result["words"]] == document["words"]
    assert len(document["words"]) == 48
    assert document["text"] == texts[-1]


def test_results_name_their_segment(run, audio_file):
    *results, document = lines_of(run(audio_file, "--interim", "--json", "--finalize-every", "1")[1])
    assert [result["segment"] for result in results] == [3, 4, 5]
    assert all(result["is_final"] for result in results)
    assert [result["text"] for result in results] == [segment["text"] for segment in document["segments"]]


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_the_document_of_a_failed_file_says_where_it_ends(run, audio_file, recognizer):
    def reject_late(request):
        if len(recognizer.requests) == 3:
            raise RejectionError("out of order")

    recognizer.before_answer = reject_late
    status, out, err = run(audio_file, audio_file, "--interim", "--json")
    lines = lines_of(out)
    assert (status, err.count("\n")) == (1, 1)
    assert ["segments" in line for line in lines] == [False] * 2 + [True] + [False] * 3 + [True]
    assert [line.get("missing_from_s") for line in lines] == [None, None, 2.0, None, None, None, None]
    assert [line.get("is_final") for line in lines] == [False, False, None, False, False, True, None]


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_results_of_the_microphone_are_printed_as_they_arrive(run, monkeypatch, capsys):
    """The microphone plays until a line is printed: without one the test would not end."""
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSounddevice(np.zeros(0, np.float32)))
    seen = ""

    def speak(self):
        nonlocal seen
        deadline_s = time.monotonic() + 20
        while not seen:
            assert time.monotonic() < deadline_s, "no result was shown"
            yield np.zeros(1600, np.float32)
            time.sleep(0.01)
            seen = capsys.readouterr().out

    monkeypatch.setattr(Microphone, "__iter__", speak)
    status, rest, _ = run("--microphone", "--interim", "--format", "json")
    *results, document = lines_of(seen + rest)
    assert status == 0
    assert json.loads(seen.splitlines()[0]) == results[0]
    assert (results[0]["audio"], results[0]["is_final"]) == ("microphone", False)
    assert results[-1]["is_final"] and results[-1]["text"] == document["text"]
    assert [word for result in results for word in result["words"]] == document["words"]
