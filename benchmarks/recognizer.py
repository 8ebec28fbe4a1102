"""Measures the RTFx of the recognizer in one process, samples to text, on recorded speech.

    python -m benchmarks.recognizer [--quick] [--model BUNDLE] [--contexts 70,6 ...] [--streams 1 32]
        [--with-nemo FILE.nemo] [--with-transformers DIR] [--with-sherpa DIR] [--manifest FILE] [--threads 1]
        [--json FILE]
    python -m benchmarks.recognizer --offline DIR [--cases short long many] [--files 64] [--batches 8] [--quick]
        [--device cpu] [--threads 1] [--json FILE]

Every stream transcribes recordings one after another, each as one utterance, so that a batch has streams of all ages.
Each step sends one chunk of samples of every stream as one batch. RTFx: audio seconds processed per wall-clock second.
Shares of the time are given per stage; the rest is the recognizer itself.

Baselines are NeMo, Transformers (a folder from `benchmarks.exports transformers`), both in the environment of the extra
`oracle`, and sherpa-onnx (a folder from `benchmarks.exports sherpa`). They transcribe the same recordings in the same
process with the same number of threads, in interleaved rounds; ratios are medians over the rounds. Word errors of the
first stream's recordings show that all systems do the same work. `--offline`: see `benchmarks.baselines`.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import paired_ratio, ratios_to, timed_rounds
from benchmarks.results import ROOT, Ratios, Steps, describe, environment, publish
from penstock.encoder.precision import AUTO
from penstock.evaluation.errors import EditCounts, compare, total
from penstock.evaluation.manifest import read_manifest
from penstock.frontend.audio_file import read_audio
from penstock.model.config import AttentionContext, parse_context
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.recognizer import StreamingRecognizer
from penstock.reporting import markdown_table
from penstock.runtime import check_device, prepare_process

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
MANIFEST = ROOT / "tests" / "data" / "an4" / "manifest.jsonl"
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
    """This project's recognizer, with the time of each stage."""

    name = "Penstock"

    def __init__(
        self,
        model: Path,
        context: AttentionContext,
        streams: int,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
        options: dict | None = None,
        precision: str = AUTO,
    ):
        """options: of every stream."""
        self._recognizer = StreamingRecognizer(
            str(model), context, streams, device, decoding=decoding, precision=precision
        )
        self._options = options or {}
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
                requests.append(self._request(number, samples, begin, end))
            for queue, result in zip(queues, self._recognizer.process(requests), strict=True):
                if not isinstance(result, StreamResult):
                    raise SystemExit(f"a stream failed: {result}")
                texts[queue[0]] = result.text
                if result.is_final:
                    del queue[0]
        return texts

    def _request(self, number: int, samples: np.ndarray, begin: int, end: int) -> AudioRequest:
        options = self._options if begin == 0 else {}
        return AudioRequest(number, samples[begin:end], begin == 0, end == len(samples), options)

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
    check_device(arguments.device, "--device")
    prepare_process(arguments.threads)
    here = environment(arguments.threads, arguments.device)
    recordings = read_recordings(arguments.manifest)
    if arguments.offline:
        measure_offline(arguments, here, recordings)
        return
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
        ratios=speed_ups(results, "seconds"),
    )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle to measure")
    parser.add_argument("--contexts", nargs="+", default=CONTEXTS, metavar="L,R", help="attention contexts")
    parser.add_argument("--streams", nargs="+", type=int, default=STREAMS, metavar="N", help="concurrent streams")
    parser.add_argument("--manifest", type=Path, default=MANIFEST, help="recordings, a NeMo manifest")
    parser.add_argument("--with-nemo", type=Path, metavar="FILE.nemo", help="NeMo as baseline")
    parser.add_argument("--with-transformers", type=Path, metavar="DIR", help="Transformers as baseline")
    parser.add_argument("--with-sherpa", type=Path, metavar="DIR", help="sherpa-onnx as baseline")
    parser.add_argument("--offline", type=Path, metavar="DIR", help="an offline model, from benchmarks.exports offline")
    parser.add_argument("--cases", nargs="+", default=["short", "long", "many"], help="with --offline (all of them)")
    parser.add_argument("--files", type=int, default=64, metavar="N", help="files of 2 to 30 s with --offline (64)")
    parser.add_argument(
        "--batches", type=int, nargs="*", default=[8], metavar="N", help="batches of baselines with --offline (8)"
    )
    parser.add_argument("--device", default="cpu", help="cpu, or with --offline cuda (cpu)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which each system transcribes everything (5)")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args(argv)
    if arguments.device != "cpu" and not arguments.offline:
        parser.error("--device needs --offline")
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
    texts, seconds, cpu_seconds = timed_rounds(
        arguments.rounds, systems, lambda system: system.run(workload.utterances, workload.playlists), workload.audio_s
    )
    check_texts(texts[penstock.name], workload.playlists[0], alone)
    results = [summarize(name, context, streams, workload, seconds, texts[name]) for name in seconds]
    for result in results:
        result["cpu_seconds"] = cpu_seconds[result["system"]]
    total_s = sum(seconds[penstock.name])
    results[0]["share"] = {stage: stage_s / total_s for stage, stage_s in penstock.stage_s.items()}
    return results


def measure_offline(arguments: argparse.Namespace, here: dict, recordings: list[Recording]) -> None:
    """Prints the table of offline models; RTFx and ratios by CPU time, on a GPU by time."""
    from benchmarks.baselines import PENSTOCK, cases, systems

    everything, results = list(systems(arguments.offline, arguments.batches, arguments.device)), []
    steps = Steps(len(arguments.cases))
    for case in cases(arguments.cases, [recording.samples for recording in recordings], arguments.files):
        steps.begin(f"{case.name}, {case.audio_s:.0f} s of audio")
        chosen = [system for system, is_for_several in everything if len(case.recordings) > 1 or not is_for_several]
        for system in chosen:  # a GPU's libraries choose and allocate by shape
            system.run([case.recordings[0][: 2 * SAMPLE_RATE_HZ]] if arguments.device == "cpu" else case.recordings)
        texts, seconds, cpu_s = timed_rounds(
            arguments.rounds, chosen, lambda system, case=case: system.run(case.recordings), case.audio_s
        )
        taken_s = cpu_s if arguments.device == "cpu" else seconds
        for name in seconds:
            equal = sum(a == b for a, b in zip(texts[name], texts[PENSTOCK], strict=True))
            results.append({
                "case": case.name, "files": len(case.recordings), "audio_s": case.audio_s, "system": name,
                "rtfx": case.audio_s / statistics.median(taken_s[name]),
                "penstock_speed_up": paired_ratio(taken_s[name], taken_s[PENSTOCK]), "equal_texts": equal,
                "seconds": seconds[name], "cpu_seconds": cpu_s[name],
            })  # fmt: skip
    rows = [
        [r["case"], r["system"], r["rtfx"], f"{r['penstock_speed_up']:.2f}", f"{r['equal_texts']} of {r['files']}"]
        for r in results
    ]
    clock = "RTFx by CPU time" if arguments.device == "cpu" else "RTFx"
    header = ["audio", "system", clock, "Penstock's speed-up", "equal texts"]
    markdown = f"{markdown_table(header, rows, left=2)}\n\n{arguments.rounds} rounds; {describe(here)}"
    document = {"environment": here, "results": results}
    speed_up = speed_ups(results, "cpu_seconds" if arguments.device == "cpu" else "seconds")
    publish(markdown, document, arguments.json, ratios=speed_up)


def speed_ups(results: list[dict], clock: str) -> Ratios:
    """Times of the other systems relative to Penstock's. clock: the results' field."""
    taken: dict[str, dict[str, list[float]]] = {}
    for result in results:
        case = result.get("case") or f"{in_words(result['streams'])}, {AttentionContext(*result['context'])}"
        taken.setdefault(case, {})[result["system"]] = result[clock]
    return Ratios(ratios_to(Penstock.name, taken), "Penstock's speed-up")


def in_words(streams: int) -> str:
    """The number of streams."""
    return f"{streams} stream{'s' if streams != 1 else ''}"


def open_systems(arguments: argparse.Namespace, context: AttentionContext, streams: int) -> list:
    """Penstock first, then the baselines."""
    systems: list = [Penstock(arguments.model, context, streams)]
    if arguments.with_nemo or arguments.with_transformers or arguments.with_sherpa:
        from benchmarks.baselines import NemoPipeline, SherpaOnnx, TransformersStreaming

        if arguments.with_nemo:
            systems.append(NemoPipeline(arguments.with_nemo, context, streams))
        if arguments.with_transformers:
            systems.append(TransformersStreaming(arguments.with_transformers, context, streams))
        if arguments.with_sherpa:
            systems.append(SherpaOnnx(arguments.with_sherpa, context))
    return systems


def check_texts(texts: dict[int, str], first_playlist: list[int], alone: dict[int, str]) -> None:
    """The text of a stream does not depend on the other streams in the batch."""
    for number in first_playlist:
        if alone.setdefault(number, texts[number]) != texts[number]:
            raise SystemExit(f"utterance {number}: alone {alone[number]!r}, in a batch {texts[number]!r}")


def summarize(
    name: str,
    context: AttentionContext,
    streams: int,
    workload: Workload,
    seconds: dict[str, list[float]],
    texts: dict[int, str],
) -> dict:
    """One line of the result."""
    words = workload.word_errors(texts)
    return {
        "system": name,
        "context": list(context),
        "streams": streams,
        "audio_s": workload.audio_s,
        "rtfx": workload.audio_s / statistics.median(seconds[name]),
        "penstock_speed_up": paired_ratio(seconds[name], seconds[Penstock.name]),
        "seconds": seconds[name],
        "word_errors": words.edits,
        "words": words.reference_units,
    }


def to_markdown(here: dict, results: list[dict]) -> str:
    """The table."""
    header = [
        "context", "streams", "system", "RTFx", "Penstock's speed-up", "features", "encoder", "decoder", "word errors",
    ]  # fmt: skip
    rows = []
    for r in results:
        shares = [f"{100 * share:.0f} %" for share in r["share"].values()] if "share" in r else ["", "", ""]
        speed_up = f"{r['penstock_speed_up']:.2f}" if r["system"] != Penstock.name else ""
        context = f"[{r['context'][0]},{r['context'][1]}]"
        errors = f"{r['word_errors']} of {r['words']}"
        rows.append([context, r["streams"], r["system"], r["rtfx"], speed_up, *shares, errors])
    return f"{markdown_table(header, rows)}\n\n{describe(here)}"


if __name__ == "__main__":
    main()
