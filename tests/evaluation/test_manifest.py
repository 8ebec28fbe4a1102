"""Manifests: what is read, and errors that name file, line and field before any work is done."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from penstock.evaluation.manifest import ManifestError, read_manifest


@pytest.fixture
def manifest(tmp_path):
    """Writes a manifest of such lines beside the files tone.wav (0.5 s at 8 kHz), empty.wav and broken.wav."""
    soundfile.write(tmp_path / "tone.wav", np.zeros(4000, np.float32), 8000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0, np.float32), 8000)
    (tmp_path / "broken.wav").write_bytes(b"no audio")

    def write(*lines: object) -> Path:
        path = tmp_path / "set.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return path

    return write


def entry(**changes: object) -> dict:
    return {"audio_filepath": "tone.wav", "duration": 0.5, "text": "a b"} | changes


def test_fields(manifest, tmp_path):
    own = {"speaker": "x", "lang": "de-DE", "boosted_phrases": ["new york", ["ada", 3]], "more": [1]}
    none = dict.fromkeys(("speaker", "lang", "boosted_phrases"))
    path = manifest(entry(**own), "", entry(text="", audio_filepath=str(tmp_path / "tone.wav")), entry(**none))
    first, second, third = read_manifest(path)
    assert (first.language, first.boosted_phrases) == ("de-DE", ("new york", ("ada", 3)))
    assert {(each.speaker, each.language, each.boosted_phrases) for each in (second, third)} == {(None, None, ())}
    assert (first.audio, first.audio_s, first.reference, first.speaker) == (tmp_path / "tone.wav", 0.5, "a b", "x")
    assert (second.audio, second.reference, second.speaker, second.line) == (tmp_path / "tone.wav", "", None, 3)


def test_text_as_editors_on_windows_write_it(tmp_path, manifest):
    path = manifest(entry())
    line = json.dumps(entry(text="a\u2028b\x85c"), ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n\r\n{line}\r\n".encode())
    assert [(u.reference, u.line) for u in read_manifest(path)] == [("a\u2028b\x85c", 1), ("a\u2028b\x85c", 3)]


def test_the_header_tells_the_length(manifest):
    right, wrong, unstated = read_manifest(
        manifest(entry(duration=0.6), entry(duration=30), {"audio_filepath": "tone.wav", "text": ""})
    )
    assert {utterance.audio_s for utterance in (right, wrong, unstated)} == {0.5}
    assert [utterance.is_stated_wrongly for utterance in (right, wrong, unstated)] == [False, True, False]


def test_what_each_speaker_says(manifest):
    segments = [
        {"speaker": "Ann", "text": "a", "start": 0},
        {"speaker": 2, "text": "b"},
        {"speaker": "Ann", "text": "c"},
    ]
    path = manifest(entry(segments=segments), entry(segments=None), entry(segments=[]))
    assert [u.speaker_texts for u in read_manifest(path, has_segments=True)] == [{"Ann": "a c", "2": "b"}, {}, {}]
    assert [u.speaker_texts for u in read_manifest(path)] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ("Ann", "segments[0]: 'Ann', expected an object with speaker and text in a list"),
        ({"speaker": "Ann", "text": "a"}, "segments[0]: "),
        ([{"speaker": "Ann", "text": "a"}, ["b"]], "segments[1]: ['b'], expected an object"),
        ([{"text": "a"}], "segments[0]: speaker: is missing"),
        ([{"speaker": ["x"], "text": "a"}], "segments[0]: speaker: ['x'], expected a name"),
        ([{"speaker": "Ann"}], "segments[0]: text: is missing"),
    ],
)
def test_wrong_segments_are_named(manifest, segments, message):
    path = manifest(entry(segments=segments))
    with pytest.raises(ManifestError) as error:
        read_manifest(path, has_segments=True)
    assert f"{path}:1: {message}" in str(error.value)
    read_manifest(path)  # other programs' segments mean something else


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (entry(lang=3), "lang: 3, expected a string"),
        (entry(boosted_phrases={}), "boosted_phrases: {{}}, expected a list"),
        (entry(boosted_phrases="ada"), "boosted_phrases: 'ada', expected a list of phrases or [phrase, boost] pairs"),
        (entry(boosted_phrases=[["ada", "3"]]), "boosted_phrases: [['ada', '3']], expected a list"),
        ("{", "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ("[1]", "'[1]', expected a JSON object"),
        ({"text": "a"}, "audio_filepath: is missing"),
        (entry(duration="long"), "duration: 'long', expected a positive number"),
        (entry(duration=float("inf")), "duration: inf, expected"),
        (entry(speaker=["x"]), "speaker: ['x'], expected a name"),
        (entry(offset=0.25), "offset: 0.25; only whole files"),
        (entry(offset=0.5), "offset: 0.5, but {folder}/tone.wav ends at 0.500 s"),
        *((entry(offset=value), "offset: ") for value in (-1, float("nan"), float("inf"), "1", True, 10**400)),
        *((entry(offset=0, duration=value), "duration: ") for value in (0, -1, float("nan"), "long", [1])),
        (entry(lang="en", source_lang="de"), "{{'lang': 'en', 'source_lang': 'de'}}, expected one language"),
        (entry(source_lang="en", target_lang="de"), "{{'source_lang': 'en', 'target_lang': 'de'}}, expected one"),
        (entry(audio_filepath=""), "audio_filepath: is empty"),
        (entry(audio_filepath="gone.wav"), "audio_filepath: {folder}/gone.wav: no such file"),
        (entry(audio_filepath="broken.wav"), "audio_filepath: {folder}/broken.wav: not a readable audio file"),
        (entry(audio_filepath="empty.wav"), "audio_filepath: {folder}/empty.wav: has no audio"),
    ],
)
def test_errors_name_file_line_and_field(manifest, tmp_path, line, message):
    path = manifest(entry(), line)
    with pytest.raises(ManifestError) as error:
        read_manifest(path)
    assert str(error.value).startswith(f"MANIFEST_INVALID: {path}:2: {message.format(folder=tmp_path)}")


def test_a_manifest_that_is_none(manifest, tmp_path):
    with pytest.raises(ManifestError, match=r"gone\.jsonl: No such file"):
        read_manifest(tmp_path / "gone.jsonl")
    with pytest.raises(ManifestError, match=r"set\.jsonl: has no utterances"):
        read_manifest(manifest(""))
    (tmp_path / "latin.jsonl").write_bytes('{"text": "é"}'.encode("latin-1"))
    with pytest.raises(ManifestError, match=r"latin\.jsonl: not UTF-8 text"):
        read_manifest(tmp_path / "latin.jsonl")
