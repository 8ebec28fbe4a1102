"""Manifests from a synthetic AN4 release in each of its layouts."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from recipes.an4.prepare import main as prepare_command

TRAIN = {"an4_clstk/fash/an251-fash-b": "<s> YES </s>", "an4_clstk/mblb/an9-mblb-b": "<s> ENTER  SIX </s>"}
TEST = {
    "an4test_clstk/fcaw/an406-fcaw-b": "RUBOUT G M",
    "an4test_clstk/miry/cen1-miry-b": "<s> H O W </s>",
    "an4test_clstk/fcaw/an407-fcaw-b": "GO",
}


def samples(name: str) -> np.ndarray:
    random = np.random.default_rng(len(name) + sum(name.encode()))
    return random.integers(-9000, 9000, 800 + 16 * len(name)).astype(np.int16)


def write_release(folder: Path, suffix: str = ".wav") -> Path:
    (folder / "etc").mkdir(parents=True)
    for part, said in {"train": TRAIN, "test": TEST}.items():
        names = [fileid.split("/")[-1] for fileid in said]
        lines = [f"{text} ({name})" for name, text in zip(names, said.values(), strict=True)]
        (folder / "etc" / f"an4_{part}.fileids").write_text("\n".join(said) + "\n")
        (folder / "etc" / f"an4_{part}.transcription").write_text("\n".join(lines) + "\n")
    for fileid in TRAIN | TEST:
        audio = folder / "wav" / f"{fileid}{suffix}"
        audio.parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".raw":
            audio.write_bytes(samples(fileid).astype("<i2").tobytes())
        else:
            layout = {".wav": "WAV", ".sph": "NIST"}[suffix]
            soundfile.write(audio, samples(fileid), 16_000, format=layout, subtype="PCM_16")
    return folder


def prepare(*arguments: object) -> int:
    return prepare_command([str(argument) for argument in arguments])


def manifest(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("suffix", [".wav", ".sph", ".raw"])
def test_writes_manifests_and_the_same_samples(tmp_path, suffix):
    out = tmp_path / "out"
    assert prepare(write_release(tmp_path / "an4", suffix), "--out", out) == 0
    train, dev = manifest(out / "train.jsonl"), manifest(out / "dev.jsonl")
    assert [(e["text"], e["speaker"]) for e in train] == [("yes", "fash"), ("enter six", "mblb")]
    assert [(e["text"], e["speaker"]) for e in dev] == [("rubout g m", "fcaw"), ("h o w", "miry"), ("go", "fcaw")]
    assert not (out / "test.jsonl").exists()
    for fileid, entry in zip(TRAIN | TEST, train + dev, strict=True):
        found, rate_hz = soundfile.read(out / entry["audio_filepath"], dtype="int16")
        np.testing.assert_array_equal(found, samples(fileid))
        assert rate_hz == 16_000 and entry["duration"] == pytest.approx(len(found) / 16_000, abs=1e-3)


@pytest.mark.parametrize("mode", ["gz", ""])
def test_reads_an_archive_with_a_folder_in_it(tmp_path, mode):
    release = write_release(tmp_path / "an4", ".sph")
    with tarfile.open(tmp_path / "an4.tar", f"w:{mode}") as archive:
        archive.add(release, "an4")
    assert prepare(tmp_path / "an4.tar", "--out", tmp_path / "out") == 0
    assert len(manifest(tmp_path / "out" / "train.jsonl")) == 2


def test_test_speakers_are_divided(tmp_path):
    out = tmp_path / "out"
    assert prepare(write_release(tmp_path / "an4"), "--out", out, "--dev-speakers", "miry") == 0
    assert {e["speaker"] for e in manifest(out / "dev.jsonl")} == {"miry"}
    assert [e["speaker"] for e in manifest(out / "test.jsonl")] == ["fcaw", "fcaw"]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("an4_train.fileids", "an4_clstk/mblb/an9-mblb-b", "an9-mblb-b", "an4_train.fileids, line 2: 'an9-mblb-b'"),
        ("an4_train.fileids", "mblb/an9-mblb-b", "mblb/an8-mblb-b", "an4_train.fileids, line 2: an8-mblb-b has no"),
        ("an4_test.fileids", "fcaw/an407-fcaw-b", "fcaw/an406-fcaw-b", "an4_test.fileids, line 3: an406-fcaw-b is"),
        ("an4_test.fileids", "an4test_clstk/miry", "an4/miry", "an4_test.fileids, line 2: no wav/an4/miry/cen1"),
        ("an4_test.fileids", "an4test_clstk/miry", "../../miry", "an4_test.fileids, line 2: '../../miry/cen1"),
        ("an4_test.transcription", "(an407-fcaw-b)", "an407", "an4_test.transcription, line 3: 'GO an407'"),
        (
            "an4_test.transcription",
            "an407-fcaw-b",
            "an406-fcaw-b",
            "transcription, line 3: an406-fcaw-b is there twice",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path, capsys, file, old, new, said):
    release = write_release(tmp_path / "an4")
    path = release / "etc" / file
    path.write_text(path.read_text().replace(old, new))
    assert prepare(release, "--out", tmp_path / "out") == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_speaker_in_both_parts_is_rejected(tmp_path, capsys):
    release = write_release(tmp_path / "an4")
    (release / "wav" / "an4test_clstk" / "fcaw").rename(release / "wav" / "an4test_clstk" / "fash")
    fileids = release / "etc" / "an4_test.fileids"
    fileids.write_text(fileids.read_text().replace("/fcaw/", "/fash/"))
    assert prepare(release, "--out", tmp_path / "out") == 1
    assert "in training and test both: speakers fash" in capsys.readouterr().err


def test_audio_that_cannot_be_used_is_named(tmp_path, capsys):
    release = write_release(tmp_path / "an4")
    broken = release / "wav" / "an4_clstk" / "mblb" / "an9-mblb-b.wav"
    soundfile.write(broken, np.zeros(80), 8000)
    assert prepare(release, "--out", tmp_path / "out") == 1
    assert f"{broken}: 8000 Hz" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "gone.tar", "other.txt"])
def test_what_is_no_release_is_rejected(tmp_path, capsys, name):
    (tmp_path / "other.txt").write_text("no archive")
    assert prepare(tmp_path / name, "--out", tmp_path / "out") == 1
    assert str(tmp_path) in capsys.readouterr().err or name == "other.txt"
