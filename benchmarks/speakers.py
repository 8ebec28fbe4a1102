"""A speaker model in float32 and int8 on a CPU, beside Transformers with the same weights.

`--speakers DIR` of `python -m benchmarks.recognizer`. DIR gets a model of the size of Nemotron-3-Diarization with
random weights, in Transformers' format and as a bundle. Transformers has streams of one age in a batch, so it computes
those of a live step one after another.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.baselines import SAMPLE_RATE_HZ
from benchmarks.measure import Measurement
from penstock.encoder.precision import FLOAT32, INT8
from penstock.speakers.bundle import QueueSize, SpeakerCheckpoint, StepSize
from penstock.speakers.diarizer import Diarizer, SpeakerSteps, live_rows
from penstock.speakers.importer import import_speakers

_FILE_S, _OLDEST_S, _MODE = 110.0, 60.0, "low_latency"


class PenstockSpeakers:
    """Penstock's network and cache."""

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

    name = "Transformers"

    def __init__(self, source: Path):
        from transformers import Nemotron3DiarizationForAudioFrameClassification as Model
        from transformers.models.nemotron3_diarization.modeling_nemotron3_diarization import (
            Nemotron3DiarizationSpeakerCache,
        )

        self._model, self._cache = Model.from_pretrained(source).eval(), Nemotron3DiarizationSpeakerCache

    @torch.no_grad()
    def run_file(self, mel: torch.Tensor) -> torch.Tensor:
        """Implements `PenstockSpeakers.run_file`."""
        return self._model(mel[None]).logits.sigmoid()[0]

    def open(self, frames: torch.Tensor, counts: list[tuple[int, int]]) -> None:
        """Implements `PenstockSpeakers.open`."""
        self._frames, self._counts = frames, counts
        self._streams = [self._cache(self._model.config.streaming_config) for _ in counts]
        for stream in self._streams:
            stream.lazy_initialization(frames[None])

    @torch.no_grad()
    def run_step(self, mel: torch.Tensor, size: StepSize) -> torch.Tensor:
        """Implements `PenstockSpeakers.run_step`."""
        found = []
        for stream, (cached, queued), rows in zip(self._streams, self._counts, mel, strict=True):
            for held in (stream.embeds, stream.fifo):
                held[:] = self._frames[: held.shape[1]]
            stream.num_cache_frames, stream.num_fifo_frames, stream.is_compressed = cached, queued, cached > 0
            found.append(
                self._model(rows[None], speaker_cache=stream, num_lookahead_frames=size.right).logits.sigmoid()
            )
        return torch.cat(found)


def systems(directory: Path, layers: int) -> list[PenstockSpeakers | TransformersSpeakers]:
    """Penstock first; writes the models that are missing in the folder."""
    from benchmarks.speaker_models import large_speaker_documents, write_speakers

    source, bundle = directory / f"transformers{layers}", directory / f"bundle{layers}"
    if not bundle.exists():
        write_speakers(source, documents=large_speaker_documents(layers))
        import_speakers(source, bundle)
    return [*(PenstockSpeakers(bundle, precision) for precision in (FLOAT32, INT8)), TransformersSpeakers(source)]


def cases(systems: list[Any], speech: Sequence[np.ndarray], streams: int) -> Iterator[Measurement]:
    """A whole recording, and a step of streams of all ages in mode `low_latency`, from log-mel."""
    diarizer = systems[0].diarizer
    config, samples = diarizer.config, np.resize(np.concatenate(speech), round(_FILE_S * SAMPLE_RATE_HZ))
    mel = diarizer.log_mel(torch.from_numpy(samples))
    yield Measurement(
        f"file of {_FILE_S:.0f} s", _FILE_S, systems, lambda one: one.run_file(mel), _no_warm_up, _compare
    )
    size, factor = config.live_steps[_MODE], config.subsampling_factor
    ages = [round(_OLDEST_S / config.frame_s * stream / streams) for stream in range(streams)]
    counts = [counts_of(age, size, config.live_queue, config.cache.frames) for age in ages]
    for system in systems:
        system.open(diarizer.network.embed(mel), counts)
    length = (size.chunk + size.right) * factor
    parts = torch.stack([mel[at : at + length] for at in np.linspace(0, len(mel) - length, streams).astype(int)])
    audio_s = streams * size.chunk * config.frame_s
    name = f"{streams} live streams, {_MODE}"
    yield Measurement(name, audio_s, systems, lambda one: one.run_step(parts, size), _no_warm_up, _compare)


def _no_warm_up(system: Any) -> None:
    """Does nothing: a step has no state, and a file is long."""


def _compare(found: torch.Tensor, first: torch.Tensor) -> str:
    count = min(found.shape[-2], first.shape[-2])
    return f"{(found[..., :count, :] - first[..., :count, :]).abs().max():.1g}"


def counts_of(age: int, size: StepSize, queue: QueueSize, limit: int) -> tuple[int, int]:
    """Frames in cache and queue of a stream after `age` frames."""
    cached = queued = 0
    for _ in range(age // size.chunk):
        queued += size.chunk
        leaving = min(max(queued - queue.frames, queue.update), queued) if queued > queue.frames else 0
        cached, queued = min(cached + leaving, limit), queued - leaving
    return cached, queued
