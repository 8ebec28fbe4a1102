"""A speaker model in float32 and int8 on a CPU, beside Transformers with the same weights.

    python -m benchmarks.speakers DIR [--parts files live] [--seconds 110] [--streams 32] [--rounds 2]
        [--modes low_latency] [--layers 31] [--threads 1] [--json FILE]

DIR gets a model of the size of Nemotron-3-Diarization with random weights, in Transformers' format and as a bundle.
Files: a recording from log-mel to probabilities. Live: a step of streams of all ages up to a minute, from log-mel;
Transformers has one age in a batch, so it computes them one after another. Cells are CPU seconds per second of audio.
Differences are those of probabilities to Transformers.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.measure import paired_ratio, timed_rounds
from benchmarks.recognizer import MANIFEST, SAMPLE_RATE_HZ, read_recordings
from benchmarks.results import describe, environment, progress, publish
from penstock.encoder.precision import FLOAT32, INT8
from penstock.reporting import markdown_table
from penstock.runtime import prepare_process
from penstock.speakers.bundle import QueueSize, SpeakerCheckpoint, StepSize
from penstock.speakers.diarizer import Diarizer, SpeakerSteps, live_rows
from penstock.speakers.importer import import_speakers

THEIRS = "Transformers"
OURS = tuple(f"Penstock {precision}" for precision in (FLOAT32, INT8))
_OLDEST_S = 60.0


class PenstockSpeakers:
    """This project's network and cache."""

    def __init__(self, bundle: Path, precision: str):
        self.name = f"Penstock {precision}"
        self.diarizer = Diarizer(SpeakerCheckpoint(bundle), precision)

    def run_file(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: [N, F]."""
        return self.diarizer.of_mel([mel])

    def open(self, frames: torch.Tensor, counts: list[tuple[int, int]]) -> None:
        """Streams whose cache and queue have `counts` of `frames` [T, D]."""
        network = self.diarizer.network
        self._frames, self._counts = frames, torch.tensor(counts).unbind(1)
        self._steps = SpeakerSteps(network, network.config.live_queue, len(counts))

    @torch.no_grad()
    def run_step(self, mel: torch.Tensor, size: StepSize) -> torch.Tensor:
        """mel: [B, 8 (chunk + look-ahead), F]."""
        state, (cached, queued) = self._steps.cache, self._counts
        state.frames[:], state.queue[:] = self._frames[: state.frames.shape[1]], self._frames[: state.queue.shape[1]]
        state.cached[:], state.queued[:], state.is_compressed[:] = cached, queued, cached > 0
        frames = self.diarizer.network.embed(mel.flatten(0, 1)).view(len(mel), size.chunk + size.right, -1)
        lengths = torch.full((len(mel),), size.chunk + size.right)
        return self._steps.step(
            live_rows(torch.arange(len(mel)), frames, lengths, torch.full_like(lengths, size.right))
        )


class TransformersSpeakers:
    """Transformers with the same weights."""

    name = THEIRS

    def __init__(self, source: Path):
        from transformers import Nemotron3DiarizationForAudioFrameClassification as Model
        from transformers.models.nemotron3_diarization.modeling_nemotron3_diarization import (
            Nemotron3DiarizationSpeakerCache,
        )

        self._model, self._cache = Model.from_pretrained(source).eval(), Nemotron3DiarizationSpeakerCache

    @torch.no_grad()
    def run_file(self, mel: torch.Tensor) -> torch.Tensor:
        """As `PenstockSpeakers.run_file`."""
        return self._model(mel[None]).logits.sigmoid()[0]

    def open(self, frames: torch.Tensor, counts: list[tuple[int, int]]) -> None:
        """As `PenstockSpeakers.open`."""
        self._frames, self._counts = frames, counts
        self._streams = [self._cache(self._model.config.streaming_config) for _ in counts]
        for stream in self._streams:
            stream.lazy_initialization(frames[None])

    @torch.no_grad()
    def run_step(self, mel: torch.Tensor, size: StepSize) -> torch.Tensor:
        """As `PenstockSpeakers.run_step`."""
        found = []
        for stream, (cached, queued), rows in zip(self._streams, self._counts, mel, strict=True):
            for held in (stream.embeds, stream.fifo):
                held[:] = self._frames[: held.shape[1]]
            stream.num_cache_frames, stream.num_fifo_frames, stream.is_compressed = cached, queued, cached > 0
            found.append(
                self._model(rows[None], speaker_cache=stream, num_lookahead_frames=size.right).logits.sigmoid()
            )
        return torch.cat(found)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder of the model")
    parser.add_argument("--parts", nargs="+", choices=["files", "live"], default=["files", "live"])
    parser.add_argument("--seconds", type=float, default=110.0, metavar="S", help="length of the recording (110)")
    parser.add_argument("--streams", type=int, default=32, metavar="N", help="concurrent streams (32)")
    parser.add_argument("--modes", nargs="+", default=["low_latency"], metavar="MODE", help="modes of the live streams")
    parser.add_argument("--rounds", type=int, default=2, help="interleaved (2)")
    parser.add_argument("--layers", type=int, default=31, metavar="N", help="layers of the network (31)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args(argv)
    prepare_process(arguments.threads)
    here, (source, bundle) = environment(arguments.threads), write_model(arguments.directory, arguments.layers)
    systems = [*(PenstockSpeakers(bundle, precision) for precision in (FLOAT32, INT8)), TransformersSpeakers(source)]
    samples = np.concatenate([recording.samples for recording in read_recordings(MANIFEST)])
    recording = torch.from_numpy(np.resize(samples, round(arguments.seconds * SAMPLE_RATE_HZ)))
    mel_of = systems[0].diarizer.log_mel
    results = []
    if "files" in arguments.parts:
        results.append(measure_file(systems, mel_of(recording), arguments.rounds))
    for mode in arguments.modes if "live" in arguments.parts else ():
        results.append(measure_live(systems, mel_of(recording), mode, arguments))
    publish(to_markdown(here, results), {"environment": here, "results": results}, arguments.json)


def write_model(directory: Path, layers: int) -> tuple[Path, Path]:
    """Writes what is missing in the folder; returns the checkpoint of Transformers and the bundle."""
    from benchmarks.transformers_models import large_speaker_documents, write_speakers

    source, bundle = directory / f"transformers{layers}", directory / f"bundle{layers}"
    if not bundle.exists():
        write_speakers(source, documents=large_speaker_documents(layers))
        import_speakers(source, bundle)
    return source, bundle


def measure_file(systems: list, mel: torch.Tensor, rounds: int) -> dict:
    """A whole recording."""
    return _measure(
        f"file of {len(mel) / 100:.0f} s", len(mel) / 100, systems, rounds, lambda system: system.run_file(mel)
    )


def measure_live(systems: list, mel: torch.Tensor, mode: str, arguments: argparse.Namespace) -> dict:
    """A step of streams of all ages."""
    config, streams = systems[0].diarizer.config, arguments.streams
    size, factor = config.live_steps[mode], config.subsampling_factor
    ages = [round(_OLDEST_S / config.frame_s * stream / streams) for stream in range(streams)]
    counts = [counts_of(age, size, config.live_queue, config.cache.frames) for age in ages]
    frames = systems[0].diarizer.network.embed(mel)
    for system in systems:
        system.open(frames, counts)
    length = (size.chunk + size.right) * factor
    parts = torch.stack([mel[at : at + length] for at in np.linspace(0, len(mel) - length, streams).astype(int)])
    audio_s = streams * size.chunk * config.frame_s
    case = f"live, {streams} streams, {mode} ({size.chunk * config.frame_s:.2f} s)"
    return _measure(case, audio_s, systems, arguments.rounds, lambda system: system.run_step(parts, size))


def counts_of(age: int, size: StepSize, queue: QueueSize, limit: int) -> tuple[int, int]:
    """Frames in cache and queue of a stream after `age` frames."""
    cached = queued = 0
    for _ in range(age // size.chunk):
        queued += size.chunk
        leaving = min(max(queued - queue.frames, queue.update), queued) if queued > queue.frames else 0
        cached, queued = min(cached + leaving, limit), queued - leaving
    return cached, queued


def _measure(case: str, audio_s: float, systems: list, rounds: int, run: Callable) -> dict:
    progress(f"{case}, {audio_s:.1f} s of audio")
    found, seconds, cpu_seconds = timed_rounds(rounds, systems, run, audio_s)
    exact = found[THEIRS]
    differences = {name: (found[name][..., : exact.shape[-2], :] - exact).abs() for name in OURS}
    return {
        "case": case, "audio_s": audio_s, "seconds": seconds, "cpu_seconds": cpu_seconds,
        "differences": {name: [float(each.mean()), float(each.max())] for name, each in differences.items()},
        "probabilities": {"mean": float(exact.mean()), "deviation": float(exact.std())},
    }  # fmt: skip


def to_markdown(here: dict, results: list[dict]) -> str:
    """CPU seconds per second of audio, ratios of Transformers to ours, differences."""
    header = ["case", *OURS, THEIRS, *(f"{THEIRS} / {name}" for name in OURS), "mean and largest difference", "rounds"]
    rows = []
    for result in results:
        taken = result["cpu_seconds"]
        cells = [f"{statistics.median(taken[name]) / result['audio_s']:.3f}" for name in (*OURS, THEIRS)]
        ratios = [f"{paired_ratio(taken[THEIRS], taken[name]):.2f}" for name in OURS]
        differences = "; ".join("{:.1g}, {:.1g}".format(*result["differences"][name]) for name in OURS)
        rows.append([result["case"], *cells, *ratios, differences, len(taken[THEIRS])])
    return f"{markdown_table(header, rows)}\n\n{describe(here)}"


if __name__ == "__main__":
    main()
