"""How many times faster than real time the recogniser is in one process, samples to text, with real speech.

    python scripts/benchmark_recognizer.py [--quick] [--model BUNDLE] [--contexts 70,6 ...] [--streams 1 32]
        [--with-nemo FILE.nemo] [--with-sherpa DIR] [--manifest FILE] [--threads 1] [--json FILE]

Every stream transcribes recordings one after another, each as an utterance of its own, so that streams are of all ages;
it pushes one chunk's worth of samples a turn and all streams' pieces are processed as one batch. RTFx is seconds of
audio a second. Where time goes: the share of each stage, the rest is the recogniser itself.

With NeMo (its environment, extra `oracle`) and with sherpa-onnx (and a folder from `export_sherpa.py`), these also
transcribe the same recordings, in the same process and with as many threads, all taking turns; the ratios are medians
over the turns. Word errors are those in the first stream's recordings, to show that all do the same work.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmark_report import ROOT, describe, machine, progress, publish

from penstock.audio import read_audio
from penstock.config import AttentionContext
from penstock.cpu import prepare_process
from penstock.evaluation.edit_distance import edit_distance
from penstock.evaluation.manifest import read_manifest
from penstock.recognizer import StreamingRecognizer
from penstock.reporting.table import markdown_table
from penstock.settings import parse_context
from penstock.stages.decoder import StreamResult
from penstock.stages.features import AudioRequest

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
CONTEXTS, STREAMS = ("70,13", "70,6", "70,1", "70,0"), (1, 32)
SAMPLE_RATE_HZ = 16000


class Recording(NamedTuple):
    """Samples (float32, 16 kHz) and what is said."""

    samples: np.ndarray
    text: str


class Workload:
    """What the streams transcribe: `utterances` by number, and the numbers of each stream's in their order."""

    def __init__(self, recordings: list[Recording], streams: int, rounds: int):
        count = len(recordings)
        plays = [[(stream + turn) % count for turn in range(count * rounds)] for stream in range(streams)]
        self.utterances = [recordings[i].samples for i in itertools.chain.from_iterable(plays)]
        numbers = iter(range(len(self.utterances)))
        self.playlists = [list(itertools.islice(numbers, len(plays[0]))) for _ in plays]
        self.audio_s = sum(map(len, self.utterances)) / SAMPLE_RATE_HZ
        self._references = [recordings[i].text for i in plays[0]]

    def word_errors(self, texts: dict[int, str]) -> tuple[int, int]:
        """Wrong words and words, of the first stream."""
        pairs = [(ref.split(), texts[i].split()) for ref, i in zip(self._references, self.playlists[0], strict=True)]
        return sum(edit_distance(*pair) for pair in pairs), sum(len(reference) for reference, _ in pairs)


class Penstock:
    """Our recogniser, with a stop-watch at each stage."""

    name = "Penstock"

    def __init__(self, model: Path, context: AttentionContext, streams: int):
        self._recognizer = StreamingRecognizer(str(model), context, max_streams=streams)
        self._piece = self._recognizer.config.encoder_frame_samples * context.chunk_encoder_frames
        self.stage_s = {"features": 0.0, "encoder": 0.0, "decoder": 0.0}
        for stage in self.stage_s:
            part = getattr(self._recognizer, f"_{stage}")
            part.process = self._timed(stage, part.process)

    def run(self, utterances: list[np.ndarray], playlists: list[list[int]]) -> dict[int, str]:
        """Text of each utterance."""
        texts: dict[int, str] = {}
        queues = [list(playlist) for playlist in playlists]
        positions = dict.fromkeys(range(len(utterances)), 0)
        while queues := [queue for queue in queues if queue]:
            requests = []
            for number in (queue[0] for queue in queues):
                begin, samples = positions[number], utterances[number]
                positions[number] = end = min(begin + self._piece, len(samples))
                requests.append(AudioRequest(number, samples[begin:end], begin == 0, end == len(samples)))
            for queue, result in zip(queues, self._recognizer.process(requests), strict=True):
                if not isinstance(result, StreamResult):
                    raise SystemExit(f"a stream failed: {result}")
                texts[queue[0]] = result.text
                if result.is_final:
                    del queue[0]
        return texts

    def _timed(self, stage: str, process: Callable) -> Callable:
        def timed(requests: list) -> list:
            started = time.perf_counter()
            answers = process(requests)
            self.stage_s[stage] += time.perf_counter() - started
            return answers

        return timed


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    prepare_process(arguments.threads)
    where = machine(arguments.threads)
    recordings = read_recordings(arguments.manifest)
    results = []
    for context in map(parse_context, arguments.contexts):
        alone: dict[int, str] = {}
        for streams in arguments.streams:
            workload = Workload(recordings, streams, 1 if streams > 1 or arguments.quick else 2)
            results += run_case(arguments, workload, context, streams, alone)
    publish(
        to_markdown(where, results),
        {"machine": where, "model": arguments.model.name, "results": results},
        arguments.json,
    )


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE")
    parser.add_argument("--contexts", nargs="+", default=CONTEXTS, metavar="L,R")
    parser.add_argument("--streams", nargs="+", type=int, default=STREAMS, metavar="N")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, help="recordings, a NeMo manifest")
    parser.add_argument("--with-nemo", type=Path, metavar="FILE.nemo", help="compare with NeMo")
    parser.add_argument("--with-sherpa", type=Path, metavar="DIR", help="compare with sherpa-onnx")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=5, help="times that each transcribes everything (5)")
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns = 1
    return arguments


def read_recordings(manifest: Path) -> list[Recording]:
    """All of a manifest, whose paths are relative to it."""
    return [
        Recording(read_audio(utterance.audio, SAMPLE_RATE_HZ), utterance.reference)
        for utterance in read_manifest(manifest)
    ]


def run_case(
    arguments: argparse.Namespace, workload: Workload, context: AttentionContext, streams: int, alone: dict[int, str]
) -> list[dict]:
    """Results of every system; `alone` gets our texts of one stream, which those of many must equal."""
    progress(f"context {context}, {streams} streams, {workload.audio_s:.0f} s of audio")
    systems = open_systems(arguments, context, streams)
    for system in systems:
        system.run(workload.utterances[:1], [[0]])
    ours = systems[0]
    ours.stage_s.update(dict.fromkeys(ours.stage_s, 0.0))
    seconds: dict[str, list[float]] = {system.name: [] for system in systems}
    texts: dict[str, dict[int, str]] = {}
    for _ in range(arguments.turns):
        for system in systems:
            started = time.perf_counter()
            texts[system.name] = system.run(workload.utterances, workload.playlists)
            seconds[system.name].append(time.perf_counter() - started)
            progress(f"  {system.name}: RTFx {workload.audio_s / seconds[system.name][-1]:.1f}")
    check_texts(texts[ours.name], workload.playlists[0], alone)
    results = [summarise(name, context, streams, workload, seconds, texts[name]) for name in seconds]
    total_s = sum(seconds[ours.name])
    results[0]["share"] = {stage: stage_s / total_s for stage, stage_s in ours.stage_s.items()}
    return results


def open_systems(arguments: argparse.Namespace, context: AttentionContext, streams: int) -> list:
    """Ours first."""
    systems: list = [Penstock(arguments.model, context, streams)]
    if arguments.with_nemo or arguments.with_sherpa:
        from benchmark_rivals import NemoPipeline, SherpaOnnx

        if arguments.with_nemo:
            systems.append(NemoPipeline(arguments.with_nemo, context, streams))
        if arguments.with_sherpa:
            systems.append(SherpaOnnx(arguments.with_sherpa, context))
    return systems


def check_texts(texts: dict[int, str], first_playlist: list[int], alone: dict[int, str]) -> None:
    """A stream among many gives what it gives alone."""
    for number in first_playlist:
        if alone.setdefault(number, texts[number]) != texts[number]:
            raise SystemExit(f"utterance {number}: alone {alone[number]!r}, among many {texts[number]!r}")


def summarise(
    name: str,
    context: AttentionContext,
    streams: int,
    workload: Workload,
    seconds: dict[str, list[float]],
    texts: dict[int, str],
) -> dict:
    """One line of the result."""
    errors, words = workload.word_errors(texts)
    turns = zip(seconds[name], seconds[Penstock.name], strict=True)
    return {
        "system": name,
        "context": list(context),
        "streams": streams,
        "audio_s": workload.audio_s,
        "rtfx": workload.audio_s / statistics.median(seconds[name]),
        "ours_is_faster_by": statistics.median(theirs / ours for theirs, ours in turns),
        "seconds": seconds[name],
        "word_errors": errors,
        "words": words,
    }


def to_markdown(where: dict, results: list[dict]) -> str:
    """The table."""
    header = [
        "context", "streams", "system", "RTFx", "ours is faster by", "features", "encoder", "decoder", "word errors",
    ]  # fmt: skip
    rows = []
    for r in results:
        shares = [f"{100 * share:.0f} %" for share in r["share"].values()] if "share" in r else ["", "", ""]
        faster = f"{r['ours_is_faster_by']:.2f}" if r["system"] != Penstock.name else ""
        context = f"[{r['context'][0]},{r['context'][1]}]"
        errors = f"{r['word_errors']} of {r['words']}"
        rows.append([context, r["streams"], r["system"], r["rtfx"], faster, *shares, errors])
    return f"{markdown_table(header, rows)}\n\n{describe(where)}"


if __name__ == "__main__":
    main()
