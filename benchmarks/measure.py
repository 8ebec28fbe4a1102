"""Runs the decoder benchmark: sets the systems up, times them and the encoder in interleaved rounds, and sums up."""

import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import add, eq
from typing import Any, NamedTuple

import torch

from benchmarks.systems import (
    CHUNKS,
    LABEL_LOOPING,
    PENSTOCK,
    WHOLE,
    Chunk,
    Selection,
    System,
    Unavailable,
    Variant,
    decoding_errors,
    penstock_systems,
    split_chunks,
)
from benchmarks.workload import Workload
from penstock.kernels.capability import TORCH


class Spread(NamedTuple):
    """Seconds of all counted rounds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """The spread of one value or more."""
        return cls(statistics.median(seconds), min(seconds), max(seconds))


class Timing(NamedTuple):
    """One task."""

    rounds_s: tuple[float, ...]
    """Seconds of each counted round."""
    result: Any
    """What the task returned in the last round."""

    @property
    def seconds(self) -> Spread:
        """Median, minimum and maximum."""
        return Spread.of(self.rounds_s)


def paired_ratio(rounds_s: Sequence[float], others_s: Sequence[float]) -> float:
    """The median over rounds of one time to the other in the same round, which cancels slow phases of the machine."""
    return statistics.median(mine_s / others_s for mine_s, others_s in zip(rounds_s, others_s, strict=True))


def time_interleaved(
    tasks: Mapping[Hashable, Callable[[], Any]],
    repeats: int,
    warm_up_rounds: int,
    device: str,
    host_clock: Callable[[], float] = time.perf_counter,
) -> dict[Hashable, Timing]:
    """Runs every task once per round, in random order; the first `warm_up_rounds` are not counted.

    host_clock: without a GPU; `time.thread_time` for the CPU time of tasks with one thread.
    """
    clock = _time_on_cuda if device.startswith("cuda") else partial(_time_on_host, host_clock)
    order, shuffle = list(tasks), random.Random(0).shuffle
    seconds: dict[Hashable, list[float]] = {name: [] for name in tasks}
    results = {}
    for number in range(warm_up_rounds + repeats):
        shuffle(order)
        for name in order:
            taken, results[name] = clock(tasks[name])
            if number >= warm_up_rounds:
                seconds[name].append(taken)
    return {name: Timing(tuple(seconds[name]), results[name]) for name in tasks}


def _time_on_host(clock: Callable[[], float], task: Callable[[], Any]) -> tuple[float, Any]:
    started = clock()
    result = task()
    return clock() - started, result


def _time_on_cuda(task: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds from an idle device until all kernels are done, host time included, and the result."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    result = task()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000.0, result


class Plan(NamedTuple):
    """What to measure, and how often."""

    batches: Sequence[int]
    beams: Sequence[int]
    decoders: Sequence[str]
    device: str
    repeats: int
    with_nemo: bool = False
    """Adds NeMo's decoders, and this project's over whole utterances, as most of NeMo's run."""
    warm_up_rounds: int = 1
    kernels: Sequence[str] = (TORCH,)
    """`TORCH`, `FUSED` or both, for the decoders that support both."""


class Figures(NamedTuple):
    """One system at one batch size. Times are medians; what needs an encoder is None without one."""

    variant: Variant
    batch: int
    audio_s: float
    """Audio seconds of all streams together."""
    decoder: Spread
    """Seconds for all streams from start to end."""
    encoder: Spread | None
    """Seconds for the same chunks, measured in the same rounds."""
    labels: int
    """Labels of all streams together: decoders that find more do more work."""
    streams_as_label_looping: float | None
    """Share of the streams with exactly the labels of the reference (`_REFERENCE`); None without it."""
    total_to_label_looping: float | None = None
    """Time in encoder and decoder to that with the reference under the same driver, paired by rounds; None without one
    of them."""
    decoder_to_label_looping: float | None = None
    """Time in the decoder alone to that of the reference under the same driver, paired by rounds."""
    rounds_s: tuple[float, ...] = ()
    """Seconds in the decoder, round by round."""

    @property
    def decoder_s_per_audio_s(self) -> float:
        """Decoder seconds per audio second."""
        return self.decoder.median / self.audio_s

    @property
    def non_encoder_rtfx(self) -> float:
        """RTFx of the decoder alone."""
        return self.audio_s / self.decoder.median

    @property
    def total_rtfx(self) -> float | None:
        """RTFx of encoder and decoder."""
        return None if self.encoder is None else self.audio_s / (self.encoder.median + self.decoder.median)

    @property
    def decoder_share(self) -> float | None:
        """Share of the time in encoder and decoder."""
        return None if self.encoder is None else self.decoder.median / (self.encoder.median + self.decoder.median)


class Systems(NamedTuple):
    """The systems under test, and those that cannot be tested."""

    available: list[System]
    unavailable: list[Unavailable]


def set_up(workload: Workload, plan: Plan) -> Systems:
    """Builds all systems; on a GPU this captures graphs."""
    spans = (CHUNKS, WHOLE) if plan.with_nemo else (CHUNKS,)
    chunk_encoder_frames = workload.context.chunk_encoder_frames
    selection = Selection(
        plan.decoders, plan.beams, spans, plan.device, max(plan.batches), chunk_encoder_frames, plan.kernels
    )
    found = list(penstock_systems(workload.checkpoint, selection))
    if plan.with_nemo:
        from benchmarks.nemo_decoders import nemo_systems

        found += nemo_systems(workload.checkpoint, selection)
    return Systems(
        [one for one in found if isinstance(one, System)], [one for one in found if isinstance(one, Unavailable)]
    )


_ENCODER = "encoder"
_REFERENCE = Variant(PENSTOCK, LABEL_LOOPING, "no_graphs")
"""Label-looping of this project in chunks, with torch kernels."""


def measure(workload: Workload, systems: Systems, plan: Plan) -> Iterator[list[Figures]]:
    """Yields the figures of all systems for each batch size.

    A system that fails moves from `systems.available` to `systems.unavailable`; the others keep their figures.
    """
    for batch in plan.batches:
        encoded = workload.encoded[:batch]
        inputs = {
            CHUNKS: split_chunks(encoded, workload.context.chunk_encoder_frames),
            WHOLE: split_chunks(encoded, encoded.shape[1]),
        }
        _drop_failing(systems, inputs, batch)
        tasks: dict = {one.variant: partial(one.decode, inputs[one.variant.span]) for one in systems.available}
        if workload.encode is not None:
            tasks[_ENCODER] = partial(workload.encode, batch)
        timed = time_interleaved(tasks, plan.repeats, plan.warm_up_rounds, plan.device)
        encoder = timed[_ENCODER].seconds if _ENCODER in timed else None
        labels = {one.variant: one.labels(timed[one.variant].result) for one in systems.available}
        references = {variant: timed.get(replace(_REFERENCE, driver=variant.driver)) for variant in labels}
        yield [
            Figures(
                variant=variant,
                batch=batch,
                audio_s=batch * workload.stream_s,
                decoder=timed[variant].seconds,
                encoder=encoder,
                labels=sum(map(len, found)),
                streams_as_label_looping=_share_of_equal(found, labels.get(_REFERENCE)),
                total_to_label_looping=_total_to(references[variant], timed[variant], timed.get(_ENCODER)),
                decoder_to_label_looping=_decoder_to(references[variant], timed[variant]),
                rounds_s=timed[variant].rounds_s,
            )
            for variant, found in labels.items()
        ]


def _drop_failing(systems: Systems, inputs: dict[str, list[Chunk]], batch: int) -> None:
    """Runs every system once."""
    for one in list(systems.available):
        try:
            one.labels(one.decode(inputs[one.variant.span]))
        except decoding_errors() as error:
            systems.available.remove(one)
            reason = f"failed at batch {batch}: {type(error).__name__}: {error}"
            systems.unavailable.append(Unavailable(one.variant, reason, is_failure=True))


def _share_of_equal(found: list[list[int]], reference: list[list[int]] | None) -> float | None:
    return None if reference is None else sum(map(eq, found, reference)) / len(found)


def _decoder_to(reference: Timing | None, timing: Timing) -> float | None:
    return None if reference is None else paired_ratio(timing.rounds_s, reference.rounds_s)


def _total_to(reference: Timing | None, timing: Timing, encoder: Timing | None) -> float | None:
    if reference is None or encoder is None:
        return None
    mine, references = (list(map(add, encoder.rounds_s, one.rounds_s)) for one in (timing, reference))
    return paired_ratio(mine, references)
