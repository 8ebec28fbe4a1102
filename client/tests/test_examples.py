"""The examples and the first two of the README, run as a user does, against the fake server."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from client.tests.helpers.fake_sounddevice import FakeSounddevice
from client.tests.helpers.fakes import text_of
from tests.helpers.native_log import without_native_log

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def protocol():
    """The one protocol of these tests."""
    return "grpc"


def run(name, *arguments):
    command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert without_native_log(done.stderr) == ""
    return done.stdout.splitlines()


def test_transcribe_file(audio_file, url):
    lines = run("transcribe_file.py", audio_file, url)
    assert lines[0] == text_of(38_400)
    assert lines[1:3] == ["    0.00 s  wörd0", "    0.05 s  λέξη1"]
    assert len(lines) == 1 + 48


def test_boosted_phrases(audio_file, url, recognizer):
    lines = run("boosted_phrases.py", audio_file, url, "ada lovelace", "penstock")
    assert lines == [f"plain:   {text_of(38_400)}", f"boosted: {text_of(38_400)}"]
    plain, boosted = (request.parameters for request in recognizer.requests if request.is_start)
    assert plain == {}
    assert (json.loads(boosted["boosted_phrases"]), boosted["boost"]) == (["ada lovelace", "penstock"], 3.0)


def test_live_async(audio_file, url):
    lines = run("live_async.py", audio_file, url)
    *results, last = lines
    assert len(results) == 25
    assert [line.split()[0] for line in results if "final" in line] == ["3", "4", "5"]
    assert last == f"in 3 segments: {text_of(16_000)} {text_of(16_000)} {text_of(6400)}"


def test_many_streams(tmp_path, url, recognizer):
    recognizer.max_streams = 3  # some streams find the server full
    paths = [tmp_path / f"{index}.wav" for index in range(6)]
    for index, path in enumerate(paths):
        soundfile.write(path, np.zeros(800 * (index + 1)), 16_000)
    missing = tmp_path / "missing.wav"
    lines = run("many_streams.py", url, *paths, missing)
    assert lines[:6] == [f"{path}: {text_of(800 * (index + 1))}" for index, path in enumerate(paths)]
    assert lines[6:] == [f"{missing}: failed: AUDIO_INVALID: {missing}: no such file"]


def test_the_readme_s_first_two_examples(audio_file, url, recognizer, samples, monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", FakeSounddevice(samples))
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    code = "".join(re.findall("```python\n(.*?)```", readme, re.DOTALL)[:2])
    assert (code.count('Client("localhost:8001")'), code.count('"call.wav"')) == (2, 1)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code.replace("localhost:8001", url).replace('"call.wav"', repr(str(audio_file))), {})
    first, *results, last = out.getvalue().splitlines()
    assert first == text_of(38_400) and len(results) == 25
    assert results[-1] == text_of(38_400) and last.startswith("[Word(text=")
    (file_id,), (stream_id,) = ({r.stream_id for r in recognizer.requests[part]} for part in (slice(3), slice(3, None)))
    assert file_id != stream_id and recognizer.requests[-1].is_end


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_without_arguments_an_example_says_how_it_is_used(name):
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"python {name}" in done.stderr and "Traceback" not in done.stderr
