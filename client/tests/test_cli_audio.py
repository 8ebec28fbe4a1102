"""The command with channels, pipes and cut files."""

import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import soundfile

from client.tests.helpers.fakes import text_of
from client.tests.helpers.sound_files import media_file

COMMAND = [sys.executable, "-m", "penstock_client.cli"]


@pytest.fixture
def protocol():
    """The one protocol of these tests."""
    return "grpc"


@pytest.fixture
def call(tmp_path, samples):
    """Two channels of 0.2 s in opposite phase."""
    soundfile.write(tmp_path / "call.wav", np.stack([samples[:3200], -samples[:3200]], axis=1), 16_000)
    return tmp_path / "call.wav"


def sent(recognizer):
    """The samples of each stream."""
    streams = {}
    for request in recognizer.requests:
        streams.setdefault(request.stream_id, []).append(request.samples.ravel())
    return [np.concatenate(parts) for parts in streams.values()]


def test_channels_that_cancel_give_a_warning(run, call):
    status, out, err = run(call)
    assert (status, out) == (0, text_of(3200) + "\n")
    warning = f"{call}: its channels cancel in the mix (opposite phase): choose one, or each"
    assert f"penstock-client: warning: {warning}\n" in err
    assert "warning" not in run(call, "--channel", "left")[2]


@pytest.mark.parametrize("channel, sign", [("left", 1), ("right", -1), ("2", -1)])
def test_one_channel_is_sent(run, call, recognizer, samples, channel, sign):
    assert run(call, "--channel", channel)[0] == 0
    (stream,) = sent(recognizer)
    np.testing.assert_allclose(stream, sign * samples[:3200], atol=1e-4)


def test_each_channel_has_its_line(run, call, recognizer):
    status, out, err = run(call, "--channel", "each")
    assert (status, out) == (0, f"{call} [left]: {text_of(3200)}\n{call} [right]: {text_of(3200)}\n")
    assert [line.partition(": ")[0] for line in err.splitlines()] == [f"{call} [left]", f"{call} [right]"]
    left, right = sent(recognizer)
    np.testing.assert_allclose(left, -right, atol=1e-4)


def test_each_channel_has_its_object(run, call):
    lines = [json.loads(line) for line in run(call, "--channel", "each", "--json", "--interim")[1].splitlines()]
    assert {line["audio"] for line in lines} == {str(call)}
    assert [line["channel"] for line in lines if "segments" in line] == ["left", "right"]
    assert {line["channel"] for line in lines if "segments" not in line} == {"left", "right"}


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_subtitles_name_the_channel(run, call, kind):
    _, out, _ = run(call, "--channel", "each", "--format", kind)
    assert [line.partition(":")[0] for line in out.splitlines() if "wörd0" in line] == ["left", "right"]
    assert out.startswith("WEBVTT\n" if kind == "vtt" else "1\n") and out.count("WEBVTT") == (kind == "vtt")


@pytest.mark.parametrize("arguments", [[], ["--channel", "each"]])
def test_a_cut_file_gives_its_text_and_a_warning(run, audio_file, arguments):
    content = audio_file.read_bytes()
    audio_file.write_bytes(content[: -4 * 800 * 8])
    status, out, err = run(audio_file, *arguments)
    assert status == 0 and out.endswith(text_of(38_400 - 800 * 8) + "\n")
    message = "is cut: ends at 2.00 s, 0.40 s are missing"
    assert err.splitlines()[-1] == f"penstock-client: warning: {audio_file}: {message}"
    remark = {"code": "cut", "start_s": 2.0, "lost_s": 0.4, "message": message}
    assert json.loads(run(audio_file, "--json", *arguments)[1])["remarks"] == [remark]


def test_times_are_those_of_a_file_that_begins_late(run, tmp_path, samples):
    pytest.importorskip("av")
    path = tmp_path / "late.mkv"
    path.write_bytes(media_file("matroska", "pcm_s16le", samples, 16_000, start_s=5.0))
    document = json.loads(run(path, "--json")[1])
    assert (document["audio_s"], document["text"]) == (2.4, text_of(38_400))
    assert (document["words"][0]["start_ms"], document["words"][-1]["end_ms"]) == (5000, 7400)
    assert run(path, "--format", "srt")[1].startswith("1\n00:00:05,000 --> ")


def fill(fifo, content):
    thread = threading.Thread(target=fifo.write_bytes, args=[content], daemon=True)
    thread.start()
    return thread


def test_a_fifo(run, fifo, audio_file, recognizer, samples):
    fill(fifo, audio_file.read_bytes())
    status, out, err = run(fifo)
    assert (status, out) == (0, text_of(38_400) + "\n")
    assert re.match(re.escape(f"{fifo}: 2.40 s of audio"), err)
    np.testing.assert_array_equal(sent(recognizer)[0], samples)


def test_a_cut_pipe_gives_its_text_and_a_warning(run, fifo, audio_file):
    fill(fifo, audio_file.read_bytes()[: -4 * 800 * 8])
    status, out, err = run(fifo, "--finalize-every", "100")
    assert (status, out) == (0, text_of(38_400 - 800 * 8) + "\n")
    assert err.endswith(f"penstock-client: warning: {fifo}: is cut: ends at 2.00 s, 0.40 s are missing\n")


def test_each_channel_of_a_pipe(run, fifo, call, recognizer):
    fill(fifo, call.read_bytes())
    status, out, _ = run(fifo, "--channel", "each")
    assert (status, out) == (0, f"{fifo} [left]: {text_of(3200)}\n{fifo} [right]: {text_of(3200)}\n")


def test_interim_lines_of_a_channel_name_it(run, call):
    lines = run(call, "--channel", "each", "--interim", "--request-ms", "50")[1].splitlines()
    assert {line.partition(": ")[0] for line in lines} == {f"{call} [left]", f"{call} [right]"}


@pytest.mark.parametrize("is_pipe", [True, False])
def test_raw_telephony(run, fifo, tmp_path, recognizer, is_pipe):
    content = bytes(np.random.default_rng(0).integers(0, 256, 16_000, dtype=np.uint8))  # 1 s, two channels
    path = fifo if is_pipe else tmp_path / "call.ulaw"
    if is_pipe:
        fill(fifo, content)
    else:
        path.write_bytes(content)
    raw = ["--raw-format", "mulaw", "--sample-rate", "8000", "--channels", "2"]
    assert run(path, *raw, "--channel", "left")[:2] == (0, text_of(16_000) + "\n")
    assert sent(recognizer)[0].size == 16_000


def test_text_is_shown_while_a_pipe_is_open(url, audio_file):
    """And the name is `-`."""
    command = [*COMMAND, "-", "--url", url, "--interim", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        content = audio_file.read_bytes()
        process.stdin.write(content[:80_000])
        process.stdin.flush()
        first = json.loads(process.stdout.readline())  # while more audio may come
        assert first["audio"] == "-" and first["text"]
        process.stdin.write(content[80_000:])
        process.stdin.close()
        document = json.loads(process.stdout.read().splitlines()[-1])
        assert process.wait(60) == 0
    assert (document["text"], document["audio_s"]) == (text_of(38_400), 2.4)


def test_standard_input_from_a_file_may_have_any_format(url, tmp_path, samples):
    soundfile.write(tmp_path / "speech.flac", samples, 16_000)
    with (tmp_path / "speech.flac").open("rb") as file:
        ended = subprocess.run([*COMMAND, "-", "--url", url], stdin=file, capture_output=True, timeout=120, check=True)
    assert ended.stdout.decode() == text_of(38_400) + "\n"


def test_wav_needs_no_library(audio_file, url, tmp_path):
    """Neither as a file nor from a pipe; of other formats the error says what to install."""
    for name in ("soundfile", "av"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no package')")
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    command = [*COMMAND, "--url", url, "--channel", "mix"]
    given = {"env": {**os.environ, "PYTHONPATH": str(tmp_path)}, "capture_output": True}
    for path, content in ((audio_file, b""), ("-", audio_file.read_bytes())):
        ended = subprocess.run([*command, path], input=content, **given)
        assert (ended.returncode, ended.stdout.decode()) == (0, text_of(38_400) + "\n")
    ended = subprocess.run([*command, tmp_path / "a.flac"], **given)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"penstock-client: error: PACKAGE_MISSING: " in ended.stderr
