"""int8 and float32 on a CPU at the size of the published 0.6 B models, beside NeMo's export in ONNX Runtime.

    python -m benchmarks.large DIR [--parts encoder streams files memory] [--contexts 70,6 70,1 70,0] [--streams 1 8 32]
        [--files 16] [--rounds 2] [--threads 1] [--json FILE]

DIR gets the models: a streaming RNN-T and an offline TDT model of 24 layers of width 1,024 with random weights, as
bundles and as ONNX files in float32 and int8, 17 GB. What it has from an earlier run is used again. Parts: a streaming
step of the encoder, streams and files from samples to text (ONNX: sherpa-onnx), memory of a process with one stream.
Cells are CPU seconds per second of audio. Random weights say nothing of words.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from benchmarks.baselines import PenstockOffline, SherpaOffline, SherpaOnnx, cases, onnx_session
from benchmarks.measure import paired_ratio, ratios_to, timed_rounds
from benchmarks.random_models import random_tokenizer
from benchmarks.recognizer import MANIFEST, SAMPLE_RATE_HZ, Penstock, in_words, read_recordings
from benchmarks.results import Ratios, Steps, describe, environment, progress, publish
from penstock.encoder.precision import FLOAT32, INT8, open_encoder
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, parse_context
from penstock.recognizer import StreamingRecognizer
from penstock.reporting import markdown_table
from penstock.runtime import prepare_process

CONTEXTS = ("70,6", "70,1", "70,0")
PRECISIONS = (FLOAT32, INT8)
SYSTEMS = [f"{engine} {precision}" for engine in ("Penstock", "ONNX") for precision in PRECISIONS]
_STREAMING, _OFFLINE, _MEL_BINS, _LABELS = "streaming", "offline", 128, 1024
_LONG_ROUNDS, _LONG_S = 1, 60.0
"""Cases of more audio have fewer rounds."""
_STREAM_S = 16.0
"""Seconds of all streams together, but at least 1 s of each and at most 4 s."""
_ENCODER_STEPS, _PRE_ENCODE_CACHE = 4, 9


class PenstockEncoder:
    """Some streams of this project's encoder."""

    def __init__(self, bundle: Path, context: AttentionContext, streams: int, precision: str):
        self.name = f"Penstock {precision}"
        self._encoder = open_encoder(Checkpoint(bundle), context, streams, precision=precision)
        self._encoder.open(torch.arange(streams))

    def run(self, windows: list[torch.Tensor]) -> None:
        """windows: [B, N + a pre-encode cache, F], of which it takes the new N."""
        frames = self._encoder.config.subsampling_factor * self._encoder.context.chunk_encoder_frames
        for window in windows:
            whole = torch.full((len(window),), frames)
            self._encoder.step(torch.arange(len(window)), window[:, -frames:], whole)


class OnnxEncoder:
    """A batch of streams of NeMo's export, with the caches that its own steps return."""

    def __init__(self, path: Path, context: AttentionContext, precision: str):
        self.name, self._session = f"ONNX {precision}", onnx_session(path)
        self._names = [put.name for put in self._session.get_inputs()]
        self._left, self._caches = context.left, [np.empty(0)]

    def _start(self, streams: int) -> None:
        sizes = self._session.get_modelmeta().custom_metadata_map
        self._caches = [
            np.zeros([streams, *(int(sizes[f"{cache}_dim{number}"]) for number in (1, 2, 3))], np.float32)
            for cache in ("cache_last_channel", "cache_last_time")
        ]
        self._caches.append(np.full(streams, self._left, np.int64))

    def run(self, windows: list[torch.Tensor]) -> None:
        """windows: [B, N, F], with the pre-encode cache."""
        if len(self._caches[0]) != len(windows[0]):
            self._start(len(windows[0]))
        for window in windows:
            lengths = np.full(len(window), window.shape[1], np.int64)
            mel = window.transpose(1, 2).contiguous().numpy()
            inputs = dict(zip(self._names, (mel, lengths, *self._caches), strict=True))
            self._caches = self._session.run(None, inputs)[2:]


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parts = {"encoder": measure_encoder, "streams": measure_streams, "files": measure_files, "memory": None}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of the models")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="all of them by default")
    parser.add_argument("--contexts", nargs="+", choices=CONTEXTS, default=CONTEXTS, metavar="L,R")
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8, 32], metavar="N", help="concurrent streams")
    parser.add_argument("--cases", nargs="+", default=["short", "long", "equal"], help="cases of files (all of them)")
    parser.add_argument("--files", type=int, default=16, metavar="N", help="files of 15 s at once (16)")
    parser.add_argument("--rounds", type=int, default=2, help=f"rounds of cases of less than {_LONG_S:.0f} s (2)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--layers", type=int, default=24, metavar="N", help="encoder layers (24)")
    parser.add_argument("--width", type=int, default=1024, metavar="N", help="encoder width (1024)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args(argv)
    prepare_process(arguments.threads)
    here = environment(arguments.threads)
    arguments.contexts = list(map(parse_context, arguments.contexts))
    write_models(arguments)
    torch.manual_seed(0)
    results: list[dict] = []
    by_streams = len(arguments.contexts) * len(arguments.streams)
    counts = {"encoder": by_streams, "streams": by_streams, "files": len(arguments.cases), "memory": 1}
    arguments.steps = Steps(sum(counts[part] for part in arguments.parts))
    for part in arguments.parts:
        for context in {"files": [None], "memory": []}.get(part, arguments.contexts):
            results += parts[part](arguments, context)
    memory = measure_memory(arguments) if "memory" in arguments.parts else []
    document = {"environment": here, "results": results, "memory": memory}
    publish(to_markdown(here, results, memory), document, arguments.json, ratios=ratios_of(results))


def write_models(arguments: argparse.Namespace) -> None:
    """Writes what is missing in the folder."""
    needs = {_STREAMING: {"encoder", "streams", "memory"}, _OFFLINE: {"files"}}
    for kind, parts in needs.items():
        folder = arguments.directory / kind
        contexts = [None] if kind == _OFFLINE else arguments.contexts
        missing = [c for c in contexts if not (_exported(folder, INT8, c) / "tokens.txt").is_file()]
        if missing and parts & set(arguments.parts):
            progress(f"writing {folder}")
            _write_model(kind, folder, missing, arguments)


def _exported(folder: Path, precision: str, context: AttentionContext | None) -> Path:
    return folder / precision / ("whole" if context is None else f"{context.left}_{context.right}")


def _write_model(
    kind: str, folder: Path, contexts: list[AttentionContext | None], arguments: argparse.Namespace
) -> None:
    """contexts: to export with; the bundle has all of `CONTEXTS`, and the same weights each time."""
    from benchmarks.exports import export_sherpa, quantize
    from benchmarks.nemo_models import build_model
    from benchmarks.nemo_specs import ModelSpec, float_signals
    from benchmarks.random_models import OFFLINE
    from penstock.model.nemo.importer import import_nemo

    spec = ModelSpec(
        kind, 81, hybrid=False, use_bias=False, xscaling=False, mel_bins=_MEL_BINS, d_model=arguments.width, n_heads=8,
        n_layers=arguments.layers, ff_expansion=4, channels=256, predictor_layers=2, predictor_hidden=640,
        joint_hidden=640, contexts=[list(parse_context(context)) for context in CONTEXTS],
        tokenizer=random_tokenizer(_LABELS), gzipped=False,
    )  # fmt: skip
    if kind == _OFFLINE:
        spec = replace(
            spec, durations=(0, 1, 2, 3, 4), norm="batch_norm", contexts=[-1, -1], encoder=OFFLINE,
            preprocessor={"normalize": "per_feature"},
        )  # fmt: skip
    signals = float_signals()
    folder.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(False), tempfile.TemporaryDirectory(dir=folder) as workspace:
        model = build_model(spec, Path(workspace), signals)
        model.save_to(f"{workspace}/model.nemo")
        import_nemo(f"{workspace}/model.nemo", folder / "bundle", replace=True)
        for context in contexts:
            files = _exported(folder, FLOAT32, context)
            export_sherpa(model, context and list(context), files)
            quantize(files, _exported(folder, INT8, context))


def measure_encoder(arguments: argparse.Namespace, context: AttentionContext) -> Iterator[dict]:
    """A step of the encoder, by streams."""
    folder = arguments.directory / _STREAMING
    systems: list = [PenstockEncoder(folder / "bundle", context, max(arguments.streams), p) for p in PRECISIONS]
    systems += [OnnxEncoder(_exported(folder, p, context) / "encoder.onnx", context, p) for p in PRECISIONS]
    frames = 8 * context.chunk_encoder_frames
    for streams in arguments.streams:
        windows = list(torch.randn(max(_ENCODER_STEPS // streams, 1), streams, frames + _PRE_ENCODE_CACHE, _MEL_BINS))
        audio_s = len(windows) * streams * frames / 100
        yield _measure(
            arguments, f"encoder, {in_words(streams)}, {context}", audio_s, systems, (windows,), (windows[:1],)
        )


def measure_streams(arguments: argparse.Namespace, context: AttentionContext) -> Iterator[dict]:
    """Samples to text, by streams."""
    folder = arguments.directory / _STREAMING
    systems: list = [Penstock(folder / "bundle", context, max(arguments.streams), precision=p) for p in PRECISIONS]
    systems += [SherpaOnnx(folder / precision, context, _MEL_BINS) for precision in PRECISIONS]
    for system, name in zip(systems, SYSTEMS, strict=True):
        system.name = name
    samples = np.concatenate([recording.samples for recording in read_recordings(MANIFEST)])
    for streams in arguments.streams:
        length = int(SAMPLE_RATE_HZ * min(max(_STREAM_S / streams, 1.0), 4.0))
        parts = np.resize(samples, streams * length).reshape(streams, length)
        yield _measure(
            arguments, f"recognizer, {in_words(streams)}, {context}", parts.size / SAMPLE_RATE_HZ, systems,
            (list(parts), [[stream] for stream in range(streams)]), ([parts[0, :SAMPLE_RATE_HZ]], [[0]]),
        )  # fmt: skip


def measure_files(arguments: argparse.Namespace, _: None) -> Iterator[dict]:
    """Whole recordings to text."""
    folder = arguments.directory / _OFFLINE
    systems: list = [PenstockOffline(folder, "cpu", f"Penstock {p}", "full", p) for p in PRECISIONS]
    systems += [SherpaOffline(_exported(folder, p, None), f"ONNX {p}", _MEL_BINS) for p in PRECISIONS]
    for case in cases(arguments.cases, [recording.samples for recording in read_recordings(MANIFEST)], arguments.files):
        short = [case.recordings[0][: 2 * SAMPLE_RATE_HZ]]
        yield _measure(arguments, case.name, case.audio_s, systems, (case.recordings,), (short,))


def _measure(
    arguments: argparse.Namespace, case: str, audio_s: float, systems: list, work: tuple, warm_up: tuple
) -> dict:
    """CPU seconds of every system in interleaved rounds, after it has done the work to warm up."""
    arguments.steps.begin(f"{case}, {audio_s:.1f} s of audio")
    for system in systems:
        system.run(*warm_up)
    rounds = arguments.rounds if audio_s < _LONG_S else _LONG_ROUNDS
    texts, seconds, cpu_seconds = timed_rounds(rounds, systems, lambda system: system.run(*work), audio_s)
    letters = {name: sum(map(len, _texts(found))) for name, found in texts.items() if found}
    return {"case": case, "audio_s": audio_s, "seconds": seconds, "cpu_seconds": cpu_seconds, "letters": letters}


def _texts(found: dict[int, str] | list[str]) -> list[str]:
    return found if isinstance(found, list) else list(found.values())


def measure_memory(arguments: argparse.Namespace) -> list[dict]:
    """Resident memory of a process with one stream."""
    found = []
    arguments.steps.begin("memory of a process with one stream")
    for precision in PRECISIONS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            bundle, context = arguments.directory / _STREAMING / "bundle", arguments.contexts[0]
            found.append(process.submit(memory_of, bundle, context, precision).result())
    return found


def memory_of(bundle: Path, context: AttentionContext, precision: str) -> dict:
    """MiB of this process: before and after a model is loaded, the largest meanwhile, and after 2 s of a stream."""
    prepare_process(1)
    found = {"precision": precision, "before_mib": resident_mib()[0]}
    recognizer = StreamingRecognizer(str(bundle), context, max_streams=1, precision=precision)
    found["loaded_mib"], found["loading_peak_mib"] = resident_mib()
    with recognizer.open_stream() as stream:
        stream.push(np.resize(read_recordings(MANIFEST)[0].samples, 2 * SAMPLE_RATE_HZ))
        stream.finish()
    found["streaming_mib"], found["peak_mib"] = resident_mib()
    return found


def resident_mib() -> tuple[int, int]:
    """Resident memory of this process now, and the largest so far."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) >> 10, int(fields["VmHWM"].split()[0]) >> 10


def ratios_of(results: list[dict]) -> Ratios:
    """CPU seconds of the other systems relative to those of Penstock's int8."""
    taken = {result["case"]: result["cpu_seconds"] for result in results}
    return Ratios(ratios_to(SYSTEMS[1], taken), f"CPU time relative to {SYSTEMS[1]}")


def to_markdown(here: dict, results: list[dict], memory: list[dict]) -> str:
    """CPU seconds per second of audio, ratios to int8, memory."""
    header = ["case", *SYSTEMS, "float32 / int8", "ONNX int8 / int8", "rounds"]
    ours = SYSTEMS[1]
    rows = []
    for result in results:
        taken = result["cpu_seconds"]
        cells = [f"{statistics.median(taken[name]) / result['audio_s']:.3f}" for name in SYSTEMS]
        ratios = [f"{paired_ratio(taken[name], taken[ours]):.2f}" for name in (SYSTEMS[0], SYSTEMS[3])]
        rows.append([result["case"], *cells, *ratios, len(taken[ours])])
    tables = [markdown_table(header, rows)] if rows else []
    if memory:
        tables.append(markdown_table(list(memory[0]), [list(each.values()) for each in memory]))
    return "\n\n".join([*tables, describe(here)])


if __name__ == "__main__":
    main()
