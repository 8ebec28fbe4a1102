"""Measures the RTFx of the recognizer in one process, samples to text, on recorded speech.

    python -m benchmarks.recognizer [--quick] [--model BUNDLE] [--contexts 70,6 ...] [--streams 1 32]
        [--with-nemo FILE.nemo] [--with-sherpa DIR ...] [--precisions int8 float32]
        [--seconds S] [--manifest FILE] [--threads 1] [--json FILE]
    python -m benchmarks.recognizer --offline DIR [--cases short long equal] [--files 64] [--quick]
        [--precisions int8 float32] [--threads 1] [--json FILE]

Every stream transcribes recordings one after another, each as one utterance, so that a batch has streams of all ages.
Each step sends one chunk of samples of every stream as one batch. RTFx: audio seconds processed per wall-clock second.
Shares of the time are given per stage; the rest is the recognizer itself.

Baselines are NeMo, in the environment of the extra `oracle`, and sherpa-onnx (a folder from `benchmarks.exports
sherpa`). They transcribe the same recordings in the same process with the same number of threads, in interleaved
rounds; ratios are medians over the rounds. Word errors of the first stream's recordings show that all systems do the
same work. `--offline`: see `benchmarks.baselines`.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from operator import eq, methodcaller
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.baselines import CASES, NemoPipeline, SherpaOnnx, cases, penstock_name
from benchmarks.baselines import systems as offline_systems
from benchmarks.measure import paired_ratio, timed_rounds
from benchmarks.results import Steps, describe, environment, progress, publish
from loadtest.options import BUNDLE, DEFAULT_RECORDINGS
from loadtest.report import in_words
from penstock.encoder.precision import AUTO
from penstock.evaluation.errors import EditCounts, compare, total
from penstock.evaluation.manifest import read_manifest
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, parse_context
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from penstock.reporting import markdown_table
from penstock.runtime import prepare_process

CONTEXTS, STREAMS = ("70,13", "70,6", "70,1", "70,0"), (1, 32)
SAMPLE_RATE_HZ = 16000


class Recording(NamedTuple):
    """Samples (float32, 16 kHz) and reference text."""

    samples: np.ndarray
    text: str


class Workload:
    """`utterances` by number, and for each stream the numbers of its utterances in order."""

    def __init__(self, recordings: list[Recording], streams: int, rounds: int):
        count = len(recordings)
        plays = [[(stream + play) % count for play in range(count * rounds)] for stream in range(streams)]
        self.utterances = [recordings[i].samples for i in itertools.chain.from_iterable(plays)]
        numbers = iter(range(len(self.utterances)))
        self.playlists = [list(itertools.islice(numbers, len(plays[0]))) for _ in plays]
        self.audio_s = sum(map(len, self.utterances)) / SAMPLE_RATE_HZ
        self._references = [recordings[i].text for i in plays[0]]

    def word_errors(self, texts: dict[int, str]) -> EditCounts:
        """Word edits of the first stream."""
        pairs = zip(self._references, self.playlists[0], strict=True)
        return total(compare(reference, texts[number]).words for reference, number in pairs)


class Penstock:
    """Penstock's recognizer, with the time of each stage."""

    def __init__(self, model: Path, context: AttentionContext, streams: int, precision: str):
        self.name = penstock_name(precision)
        self._recognizer = StreamingRecognizer(str(model), context, streams, precision=precision)
        self._chunk_samples = self._recognizer.config.encoder_frame_samples * context.chunk_encoder_frames
        self.stage_s = {"features": 0.0, "encoder": 0.0, "decoder": 0.0}
        for stage in self.stage_s:
            part = getattr(self._recognizer, f"_{stage}")
            name = "process_rows" if stage == "features" else "process_tickets"
            setattr(part, name, self._timed(stage, getattr(part, name)))

    def run(self, utterances: list[np.ndarray], playlists: list[list[int]]) -> dict[int, str]:
        """Text of each utterance."""
        texts: dict[int, str] = {}
        queues = [list(playlist) for playlist in playlists]
        positions = dict.fromkeys(range(len(utterances)), 0)
        while queues := [queue for queue in queues if queue]:
            requests = []
            for number in (queue[0] for queue in queues):
                begin, samples = positions[number], utterances[number]
                positions[number] = end = min(begin + self._chunk_samples, len(samples))
                requests.append(AudioRequest(number, samples[begin:end], begin == 0, end == len(samples)))
            for queue, result in zip(queues, self._recognizer.process(requests), strict=True):
                if not isinstance(result, StreamResult):
                    raise SystemExit(f"a stream failed: {result}")
                texts[queue[0]] = result.text
                if result.is_final:
                    del queue[0]
        return texts

    def _timed(self, stage: str, process: Callable) -> Callable:
        def timed(*batch: list, **more: bool) -> list:
            started = time.perf_counter()
            answers = process(*batch, **more)
            self.stage_s[stage] += time.perf_counter() - started
            return answers

        return timed


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    arguments = parse_arguments(argv)
    prepare_process(arguments.threads)
    here = environment(arguments.threads)
    recordings = read_recordings(arguments.manifest)
    speech = [recording.samples for recording in recordings]
    if arguments.offline:
        return measure_offline(arguments, here, speech)
    if arguments.seconds:  # texts say nothing then
        recordings = [Recording(np.resize(np.concatenate(speech), round(arguments.seconds * SAMPLE_RATE_HZ)), "")]
    results = []
    steps = Steps(len(arguments.contexts) * len(arguments.streams))
    for context in map(parse_context, arguments.contexts):
        alone: dict[int, str] = {}
        for streams in arguments.streams:
            workload = Workload(recordings, streams, 1 if streams > 1 or arguments.quick else 2)
            steps.begin(f"{in_words(streams)}, context {context}, {workload.audio_s:.0f} s of audio")
            results += run_case(arguments, workload, context, streams, alone)
    publish(
        to_markdown(here, results),
        {"environment": here, "model": arguments.model.name, "results": results},
        arguments.json,
    )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle to measure")
    parser.add_argument("--contexts", nargs="+", default=CONTEXTS, metavar="L,R", help="attention contexts")
    parser.add_argument("--streams", nargs="+", type=int, default=STREAMS, metavar="N", help="concurrent streams")
    parser.add_argument("--manifest", type=Path, default=DEFAULT_RECORDINGS, help="recordings, a NeMo manifest")
    parser.add_argument("--with-nemo", type=Path, metavar="FILE.nemo", help="NeMo as baseline")
    parser.add_argument("--with-sherpa", type=Path, nargs="+", default=[], metavar="DIR", help="sherpa-onnx, as well")
    parser.add_argument("--precisions", nargs="+", default=[AUTO], metavar="NAME", help="Penstock's, int8 ... (auto)")
    parser.add_argument("--seconds", type=float, metavar="S", help="audio of each stream (all recordings)")
    parser.add_argument("--offline", type=Path, metavar="DIR", help="an offline model, from benchmarks.exports")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES, help="with --offline (all of them)")
    parser.add_argument("--files", type=int, default=64, metavar="N", help="files of 15 s with --offline (64)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which each system transcribes everything (5)")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.rounds = 1
    return arguments


def read_recordings(manifest: Path) -> list[Recording]:
    """All utterances of a manifest."""
    return [
        Recording(read_audio(utterance.audio, SAMPLE_RATE_HZ), utterance.reference)
        for utterance in read_manifest(manifest)
    ]


def run_case(
    arguments: argparse.Namespace, workload: Workload, context: AttentionContext, streams: int, alone: dict[int, str]
) -> list[dict]:
    """Results of every system. `alone` collects Penstock's texts with one stream; those with many must equal them."""
    systems = open_systems(arguments, context, streams)
    for system in systems:
        system.run(workload.utterances[:1], [[0]])
    penstock = systems[0]
    penstock.stage_s.update(dict.fromkeys(penstock.stage_s, 0.0))
    run = methodcaller("run", workload.utterances, workload.playlists)
    texts, seconds, cpu_seconds = timed_rounds(arguments.rounds, systems, run, workload.audio_s)
    if arguments.precisions == [AUTO]:
        check_texts(texts[penstock.name], workload.playlists[0], alone)
    results = []
    for name in seconds:
        words = workload.word_errors(texts[name])
        line = {"system": name, "context": list(context), "streams": streams, "audio_s": workload.audio_s}
        line |= {"rtfx": workload.audio_s / statistics.median(seconds[name])}
        line |= {"penstock_speed_up": paired_ratio(seconds[name], seconds[penstock.name])}
        line |= {"seconds": seconds[name], "cpu_seconds": cpu_seconds[name]}
        results.append(line | {"word_errors": words.edits, "words": words.reference_units})
    total_s = sum(seconds[penstock.name])
    results[0]["share"] = {stage: stage_s / total_s for stage, stage_s in penstock.stage_s.items()}
    return results


def measure_offline(arguments: argparse.Namespace, here: dict, speech: list[np.ndarray]) -> None:
    """Prints the table of offline models on whole recordings; RTFx and ratios by CPU time."""
    systems, results = list(offline_systems(arguments.offline, arguments.precisions)), []
    first = systems[0].name
    for case in cases(arguments.cases, speech, arguments.files):
        progress(f"{case.name}, {case.audio_s:.0f} s of audio")
        for system in systems:
            system.run([case.recordings[0][: 2 * SAMPLE_RATE_HZ]])
        run = methodcaller("run", case.recordings)
        texts, seconds, cpu_s = timed_rounds(arguments.rounds, systems, run, case.audio_s)
        for name in seconds:
            agreement = f"{sum(map(eq, texts[name], texts[first]))} of {len(texts[first])}"
            result = {"case": case.name, "audio_s": case.audio_s, "system": name, "seconds": seconds[name]}
            result |= {"cpu_seconds": cpu_s[name], "agreement": agreement}
            result["rtfx"] = case.audio_s / statistics.median(cpu_s[name])
            results.append(result | {"penstock_speed_up": paired_ratio(cpu_s[name], cpu_s[first])})
    rows = [[r["case"], r["system"], r["rtfx"], f"{r['penstock_speed_up']:.2f}", r["agreement"]] for r in results]
    header = ["audio", "system", "RTFx by CPU time", "Penstock's speed-up", "equal texts"]
    markdown = f"{markdown_table(header, rows, left=2)}\n\n{arguments.rounds} rounds; {describe(here)}"
    publish(markdown, {"environment": here, "results": results}, arguments.json)


def open_systems(arguments: argparse.Namespace, context: AttentionContext, streams: int) -> list:
    """Penstock first, then the baselines."""
    systems: list = [Penstock(arguments.model, context, streams, each) for each in arguments.precisions]
    if arguments.with_nemo:
        systems.append(NemoPipeline(arguments.with_nemo, context, streams))
    mel_bins = Checkpoint(arguments.model).config.encoder.mel_bins
    return systems + [SherpaOnnx(directory, context, mel_bins) for directory in arguments.with_sherpa]


def check_texts(texts: dict[int, str], first_playlist: list[int], alone: dict[int, str]) -> None:
    """The text of a stream does not depend on the other streams in the batch."""
    for number in first_playlist:
        if alone.setdefault(number, texts[number]) != texts[number]:
            raise SystemExit(f"utterance {number}: alone {alone[number]!r}, in a batch {texts[number]!r}")


def to_markdown(here: dict, results: list[dict]) -> str:
    """The table."""
    header = [
        "context", "streams", "system", "RTFx", "Penstock's speed-up", "features", "encoder", "decoder", "word errors",
    ]  # fmt: skip
    rows = []
    for r in results:
        shares = [f"{100 * share:.0f} %" for share in r["share"].values()] if "share" in r else ["", "", ""]
        speed_up = f"{r['penstock_speed_up']:.2f}" if r["system"] != results[0]["system"] else ""
        context = f"[{r['context'][0]},{r['context'][1]}]"
        errors = f"{r['word_errors']} of {r['words']}" if r["words"] else ""
        rows.append([context, r["streams"], r["system"], r["rtfx"], speed_up, *shares, errors])
    return f"{markdown_table(header, rows)}\n\n{describe(here)}"


if __name__ == "__main__":
    main()
