"""Transcripts as files: formats, names, and what exists already."""

import json
import os
import platform
import subprocess
from itertools import islice
from pathlib import PurePath

import pytest

from penstock.errors import PenstockError
from penstock.pipeline.results.results import Alternative
from penstock.pipeline.results.words import Word
from penstock.transcription.audio_inputs import AudioInput
from penstock.transcription.files import FileSegment, FileTranscript
from penstock.transcription.result_files import LATTICE, ResultFiles, document
from penstock_client.cli.output import AudioName, Streamed
from penstock_client.cli.output import document as client_document
from penstock_common import subtitles
from penstock_common.results import Alternative as ClientAlternative
from penstock_common.results import Word as ClientWord
from penstock_common.transcript import Segment
from penstock_common.transcript import Transcript as ClientTranscript

TEXTS = ["so", "<this>", "is", "said.", "After", "a", "pause"]
TIMES_MS = [(400 * i + (9000 if i > 3 else 0), 400 * i + 300 + (9000 if i > 3 else 0)) for i in range(len(TEXTS))]
AUDIO = AudioInput("in/day/a.b.wav", PurePath("day/a.b.wav"))


def transcript(channel: str | None = None) -> FileTranscript:
    words = [Word(text, *times, 0.5) for text, times in zip(TEXTS, TIMES_MS, strict=True)]
    return FileTranscript(AUDIO.path, channel, 20.0, " ".join(TEXTS), words=words)


def test_all_formats_at_once(tmp_path):
    ResultFiles(tmp_path / "out", ["txt", "json", "srt", "vtt"]).write(AUDIO, transcript())
    folder = tmp_path / "out" / "day"
    assert sorted(path.name for path in folder.iterdir()) == ["a.b.json", "a.b.srt", "a.b.txt", "a.b.vtt"]
    assert (folder / "a.b.txt").read_text() == " ".join(TEXTS) + "\n"
    assert json.loads((folder / "a.b.json").read_text()) == document(transcript())


def test_json_has_the_fields_of_the_client(tmp_path):
    name = AudioName(AUDIO.path)
    words = [ClientWord(text, *times, 0.51239) for text, times in zip(TEXTS, TIMES_MS, strict=True)]
    segment = Segment("so", words, alternatives=(ClientAlternative("so", -1.23456, tuple(words[:1])),), is_final=True)
    theirs = client_document(name, Streamed(ClientTranscript([segment]), 20.0))
    ours = transcript()
    ours.segments = [FileSegment("so", alternatives=[Alternative("so", -1.23456, -1.0, tuple(ours.words[:1]))])]
    ours.alternatives = ours.segments[0].alternatives
    for part in (lambda found: found, lambda found: found["segments"][0], lambda found: found["words"][0],
                 lambda found: found["alternatives"][0]):  # fmt: skip
        assert list(part(theirs)) == list(part(document(ours)))
    assert theirs["words"][0]["confidence"] == 0.5124
    assert theirs["alternatives"][0]["score"] == document(ours)["alternatives"][0]["score"] == -1.2346


def test_a_lattice_has_the_alternatives_as_paths_that_openfst_reads(tmp_path):
    costs = {"go on": 1.5, "go": 2.25, "so on": 3.0, "": 4.0}
    given = transcript()
    given.alternatives += [Alternative(text, -cost, -cost, ()) for text, cost in costs.items()]
    given.alternatives.append(Alternative("go", -9.0, -9.0, ()))
    ResultFiles(tmp_path, [LATTICE]).write(AUDIO, given)
    text = (tmp_path / "day" / "a.b.fst.txt").read_text()
    assert text.splitlines() == [
        "0\t1\tgo", "1\t2\ton", "0\t3\tso", "3\t4\ton", "2\t1.5", "1\t2.25", "4\t3", "0\t4",
    ]  # fmt: skip
    kaldifst = pytest.importorskip("kaldifst")
    numbered = text.replace("go", "1").replace("on", "2").replace("so", "3")
    best = kaldifst.shortest_path(kaldifst.compile(numbered, acceptor=True))
    _, words, _, cost = kaldifst.get_linear_symbol_sequence(best)
    assert (words, cost.value) == ([1, 2], 1.5)


@pytest.mark.parametrize("lengths", [[7], [2, 3, 2]])
def test_subtitles_are_those_of_the_client(tmp_path, lengths):
    """A long pause ends a cue, not a segment."""
    given = transcript()
    given.segments = [FileSegment(words=count) for count in lengths]
    ResultFiles(tmp_path, ["srt", "vtt"]).write(AUDIO, given)
    words = iter([ClientWord(text, *times, 0.5) for text, times in zip(TEXTS, TIMES_MS, strict=True)])
    cues = subtitles.cues(subtitles.SpokenPart(list(islice(words, count))) for count in lengths)
    assert len(cues) == 2
    assert (tmp_path / "day" / "a.b.srt").read_text() == subtitles.srt(cues)
    assert (tmp_path / "day" / "a.b.vtt").read_text() == subtitles.vtt(cues)


@pytest.mark.parametrize("named, known, cues", [("", "de-DE", 1), ("de", "en", 1), ("", "", 2)])
def test_subtitles_have_the_sentences_of_their_language(tmp_path, named, known, cues):
    """The language that the model names counts, else the one that is known before. A pause divides sentences alone."""
    words = [Word("am", 0, 300), Word("2.", 400, 700), Word("Oktober.", 1_800, 2_100)]
    given = FileTranscript(AUDIO.path, audio_s=9.0, words=words, known_language=known)
    given.segments = [FileSegment(words=3, language=named)]
    ResultFiles(tmp_path, ["srt"]).write(AUDIO, given)
    assert (tmp_path / "day" / "a.b.srt").read_text().count("-->") == cues


def test_channels_have_files_of_their_own(tmp_path):
    results = ResultFiles(tmp_path, ["txt"])
    for channel in ("left", "right"):
        results.write(AUDIO, transcript(channel))
        assert [path.is_file() for path in results.paths(AUDIO, channel)] == [True]
    assert sorted(path.name for path in (tmp_path / "day").iterdir()) == ["a.b.left.txt", "a.b.right.txt"]


def test_two_files_with_one_result_are_named(tmp_path):
    inputs = [AudioInput("x/a.wav", PurePath("a.wav")), AudioInput("y/a.wav", PurePath("a.wav"))]
    with pytest.raises(PenstockError, match=r"x/a\.wav and y/a\.wav would both be written to .*a\.txt; rename one"):
        ResultFiles(tmp_path, ["txt", "json"]).choose_names(inputs)


def test_two_files_that_differ_in_their_suffix_keep_it(tmp_path):
    results = ResultFiles(tmp_path, ["txt"])
    names = ("day/a.b.wav", "day/a.b.mp3", "night/a.b.wav")
    inputs = [AudioInput(f"in/{name}", PurePath(name)) for name in names]
    results.choose_names(inputs)
    for each in inputs:
        results.write(each, transcript())
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.txt"))
    assert written == ["day/a.b.mp3.txt", "day/a.b.wav.txt", "night/a.b.txt"]


def test_what_cannot_be_written_is_named(tmp_path):
    with pytest.raises(PenstockError, match="SETTING_INVALID: --format is 'doc'; accepted: txt,json,srt,vtt"):
        ResultFiles(tmp_path, ["txt", "doc"])
    (tmp_path / "file").touch()
    with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: --out .*file: file exists"):
        ResultFiles(tmp_path / "file", ["txt"])
    (tmp_path / "day").touch()
    with pytest.raises(PenstockError, match=r"OUTPUT_FAILED: .*a\.b\.txt: cannot be written: "):
        ResultFiles(tmp_path, ["txt"]).write(AUDIO, transcript())


def test_only_what_a_dead_process_of_this_machine_left_is_removed(tmp_path):
    with subprocess.Popen(["true"]) as process:
        dead = process.pid
    host = platform.node()
    gone = [f".penstock-{dead}.partial", f".penstock-{dead}-{host}.partial", f"day/.penstock-{dead}-{host}.partial"]
    kept = [f".penstock-{os.getppid()}.partial", f".penstock-{dead}-{host}.partial.txt", ".penstock-x.partial",
            f"night/.penstock-{dead}.partial", f".penstock-{dead}-x.partial", f".penstock-0{dead}.partial"]  # fmt: skip
    for name in (*gone, *kept):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    ResultFiles(tmp_path, ["txt"]).remove_partials([AUDIO])
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*partial*")} == set(kept)
