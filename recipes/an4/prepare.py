"""Makes train.jsonl, dev.jsonl and test.jsonl from the public AN4 release (CMU Census), for recipes/an4/train.py.

    python -m recipes.an4.prepare RELEASE --out DIR [--dev-speakers NAME,...|half]

The release is a folder or a tar file, in one of three layouts: the repository https://github.com/cmusphinx/an4
(wav/*.wav), or the older archives an4_sphere.tar.gz (*.sph) and an4_raw.littleendian.tar.gz (*.raw, 16-bit samples
without a header). All have etc/an4_{train,test}.fileids and etc/an4_{train,test}.transcription. The audio is written as
FLAC beside the manifests.
"""

import argparse
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import soundfile

from penstock.errors import CorpusError

HALF = "fcaw,fvap,mdms2,miry,mjwl"
"""Five of the ten test speakers, 65 of the 130 utterances: the development set of the figures in docs/."""
_SAMPLE_RATE_HZ = 16_000
_TRANSCRIPTION = re.compile(r"(?P<text>.*?)\s*\((?P<name>[^()\s]+)\)")
_SENTENCE_MARKS = ("<s>", "</s>", "<sil>")


class An4Error(CorpusError):
    """The release cannot be used. The text starts with the file, then the line if there is one."""


@dataclass(frozen=True)
class An4Utterance:
    """One line of a .fileids file with its transcript."""

    audio: Path
    name: str
    speaker: str
    text: str
    """Lower case, without sentence marks."""


class An4Split(NamedTuple):
    """The release's two parts; no speaker is in both."""

    train: list[An4Utterance]
    test: list[An4Utterance]


def read_release(folder: Path) -> An4Split:
    """Reads a release unpacked at `folder` or in a folder within it. Raises An4Error."""
    root = _root(folder)
    split = An4Split(_read_part(root, "train"), _read_part(root, "test"))
    shared = {u.speaker for u in split.train} & {u.speaker for u in split.test}
    if shared:
        raise An4Error(f"{root / 'etc'}: in training and test both: speakers {', '.join(sorted(shared))}")
    return split


def divide_test(test: list[An4Utterance], dev_speakers: list[str]) -> tuple[list[An4Utterance], list[An4Utterance]]:
    """The utterances of `dev_speakers` (default: all) and those of the other speakers."""
    known = sorted({utterance.speaker for utterance in test})
    for speaker in dev_speakers:
        if speaker not in known:
            raise An4Error(f"--dev-speakers: {speaker!r}, expected some of the test speakers {', '.join(known)}")
    chosen = set(dev_speakers or known)
    return [u for u in test if u.speaker in chosen], [u for u in test if u.speaker not in chosen]


def write_manifest(utterances: list[An4Utterance], path: Path) -> float:
    """Writes a manifest and its audio as flac/NAME.flac; returns the audio seconds. Raises An4Error."""
    flac = path.parent / "flac"
    flac.mkdir(parents=True, exist_ok=True)
    lines, total_s = [], 0.0
    for utterance in utterances:
        duration_s = _convert(utterance.audio, flac / f"{utterance.name}.flac")
        entry = {
            "audio_filepath": f"flac/{utterance.name}.flac",
            "duration": round(duration_s, 3),
            "text": utterance.text,
            "speaker": utterance.speaker,
        }
        lines.append(json.dumps(entry))
        total_s += duration_s
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return total_s


def _root(folder: Path) -> Path:
    """The folder that holds etc/ and wav/."""
    marks = (folder / "etc" / "an4_train.fileids", *sorted(folder.glob("*/etc/an4_train.fileids")))
    for mark in marks:
        if mark.exists():
            return mark.parent.parent
    raise An4Error(f"{folder}: no etc/an4_train.fileids in it or in a folder within; is this the AN4 release?")


def _read_part(root: Path, part: str) -> list[An4Utterance]:
    transcripts = _read_transcripts(root / "etc" / f"an4_{part}.transcription")
    fileids = root / "etc" / f"an4_{part}.fileids"
    utterances: dict[str, An4Utterance] = {}
    for number, line in _lines(fileids):
        where, fileid = f"{fileids}, line {number}", Path(line)
        name, speaker = fileid.name, fileid.parent.name
        if not speaker or fileid.is_absolute() or ".." in fileid.parts:
            raise An4Error(f"{where}: {line!r}, expected FOLDER/SPEAKER/NAME")
        if name in utterances:
            raise An4Error(f"{where}: {name} is there twice")
        if name not in transcripts:
            raise An4Error(f"{where}: {name} has no line in an4_{part}.transcription")
        utterances[name] = An4Utterance(_find_audio(root, fileid, where), name, speaker, transcripts[name])
    if not utterances:
        raise An4Error(f"{fileids}: has no utterances")
    return list(utterances.values())


def _read_transcripts(path: Path) -> dict[str, str]:
    """Name -> text, from lines such as `<s> ENTER SIX </s> (an67-fbbh-b)`; the marks are optional."""
    transcripts: dict[str, str] = {}
    for number, line in _lines(path):
        match = _TRANSCRIPTION.fullmatch(line)
        if match is None:
            raise An4Error(f"{path}, line {number}: {line[:60]!r}, expected a transcript and (NAME)")
        name = match["name"]
        if name in transcripts:
            raise An4Error(f"{path}, line {number}: {name} is there twice")
        words = [word for word in match["text"].lower().split() if word not in _SENTENCE_MARKS]
        transcripts[name] = " ".join(words)
    return transcripts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, numbered from 1."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise An4Error(f"{path}: {error}") from error
    return ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def _find_audio(root: Path, fileid: Path, where: str) -> Path:
    for suffix in (".wav", ".sph", ".raw"):
        audio = root / "wav" / fileid.with_name(fileid.name + suffix)
        if audio.exists():
            return audio
    raise An4Error(f"{where}: no wav/{fileid}.wav, .sph or .raw")


def _convert(audio: Path, flac: Path) -> float:
    """Writes the same 16-bit samples as FLAC; returns seconds."""
    raw = {"samplerate": _SAMPLE_RATE_HZ, "channels": 1, "subtype": "PCM_16", "endian": "LITTLE", "format": "RAW"}
    try:
        samples, rate_hz = soundfile.read(audio, dtype="int16", **(raw if audio.suffix == ".raw" else {}))
    except (OSError, soundfile.SoundFileError) as error:
        raise An4Error(f"{audio}: {error}") from error
    if rate_hz != _SAMPLE_RATE_HZ or samples.ndim != 1 or not len(samples):
        raise An4Error(f"{audio}: {rate_hz} Hz, samples {samples.shape}; expected some of 16000 Hz, one channel")
    soundfile.write(flac, samples, rate_hz, subtype="PCM_16")
    return len(samples) / rate_hz


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", type=Path, help="folder or tar file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the manifests and flac/")
    parser.add_argument(
        "--dev-speakers",
        default="",
        help=f"test speakers of dev.jsonl, the others go to test.jsonl; default: all; 'half': {HALF}",
    )
    options = parser.parse_args(arguments)
    try:
        _prepare(options.release, options.out, HALF if options.dev_speakers == "half" else options.dev_speakers)
    except (An4Error, OSError, tarfile.TarError) as error:
        print(f"recipes.an4.prepare: error: {error}", file=sys.stderr)
        return 1
    return 0


def _prepare(release: Path, out: Path, dev_speakers: str) -> None:
    with ExitStack() as stack:
        if not release.is_dir():
            unpacked = stack.enter_context(tempfile.TemporaryDirectory())
            with tarfile.open(release) as archive:
                archive.extractall(unpacked, filter="data")
            release = Path(unpacked)
        train, test = read_release(release)
        dev, held_out = divide_test(test, [speaker for speaker in dev_speakers.split(",") if speaker])
        for name, utterances in {"train": train, "dev": dev, "test": held_out}.items():
            if utterances:
                seconds = write_manifest(utterances, out / f"{name}.jsonl")
                speakers = len({utterance.speaker for utterance in utterances})
                print(f"{out / name}.jsonl: {len(utterances)} utterances, {speakers} speakers, {seconds / 60:.1f} min")


if __name__ == "__main__":
    sys.exit(main())
