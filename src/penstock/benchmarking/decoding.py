"""Runs a benchmark of decoders: sets the contestants up, lets them and the encoder take turns, makes figures of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import add, eq
from typing import NamedTuple

from penstock.benchmarking.contestant import CHUNKS, PENSTOCK, WHOLE, Absence, Chunk, Contestant, Entry, cut
from penstock.benchmarking.failures import failures
from penstock.benchmarking.our_decoders import LABEL_LOOPING, Wanted, our_contestants
from penstock.benchmarking.stopwatch import Spread, Timed, paired_ratio, take_turns
from penstock.benchmarking.subject import Subject
from penstock.kernels.capability import TORCH


class Plan(NamedTuple):
    """What to measure."""

    batches: Sequence[int]
    beams: Sequence[int]
    decoders: Sequence[str]
    device: str
    repeats: int
    with_nemo: bool = False
    """NeMo's decoders too, and ours also over whole utterances, as most of NeMo's run."""
    warm_up_rounds: int = 1
    kernels: Sequence[str] = (TORCH,)
    """Of `TORCH` and `FUSED`, for the decoders that can have both."""


class Figures(NamedTuple):
    """One decoder at one batch size. Times are medians; what needs an encoder is None without one."""

    entry: Entry
    batch: int
    audio_s: float
    """Of all streams together."""
    decoder: Spread
    """Seconds for all streams from start to end."""
    encoder: Spread | None
    """Seconds for the same chunks, measured in the same rounds."""
    labels: int
    """Of all streams together: decoders that find more do more work."""
    streams_as_label_looping: float | None
    """Share of the streams whose labels are exactly those of our eager label-looping in chunks; None without it."""
    total_to_label_looping: float | None = None
    """Time in encoder and decoder to that with our label-looping under the same driver, paired by rounds; None without
    one of them."""
    decoder_to_label_looping: float | None = None
    """Time in the decoder alone to that of our label-looping under the same driver, paired by rounds."""
    rounds_s: tuple[float, ...] = ()
    """Seconds in the decoder, round by round."""

    @property
    def decoder_s_per_audio_s(self) -> float:
        """Seconds in the decoder for a second of audio."""
        return self.decoder.median / self.audio_s

    @property
    def non_encoder_rtfx(self) -> float:
        """Seconds of audio decoded in a second."""
        return self.audio_s / self.decoder.median

    @property
    def total_rtfx(self) -> float | None:
        """Seconds of audio encoded and decoded in a second."""
        return None if self.encoder is None else self.audio_s / (self.encoder.median + self.decoder.median)

    @property
    def decoder_share(self) -> float | None:
        """Of the time in encoder and decoder."""
        return None if self.encoder is None else self.decoder.median / (self.encoder.median + self.decoder.median)


class Field(NamedTuple):
    """Who takes part."""

    contestants: list[Contestant]
    absent: list[Absence]


def set_up(subject: Subject, plan: Plan) -> Field:
    """Builds all decoders; on a GPU this captures graphs."""
    spans = (CHUNKS, WHOLE) if plan.with_nemo else (CHUNKS,)
    chunk_encoder_frames = subject.context.chunk_encoder_frames
    wanted = Wanted(
        plan.decoders, plan.beams, spans, plan.device, max(plan.batches), chunk_encoder_frames, plan.kernels
    )
    found = list(our_contestants(subject.checkpoint, wanted))
    if plan.with_nemo:
        from penstock.benchmarking.nemo_decoders import nemo_contestants

        found += nemo_contestants(subject.checkpoint, wanted)
    return Field(
        [one for one in found if isinstance(one, Contestant)], [one for one in found if isinstance(one, Absence)]
    )


_ENCODER = "encoder"
_STANDARD = Entry(PENSTOCK, LABEL_LOOPING, "eager")


def measure(subject: Subject, field: Field, plan: Plan) -> Iterator[list[Figures]]:
    """For each batch size the figures of all contestants.

    One that fails is taken from the field's contestants and put to its absent: the others' figures are not lost.
    """
    for batch in plan.batches:
        encoded = subject.encoded[:batch]
        inputs = {
            CHUNKS: cut(encoded, subject.context.chunk_encoder_frames),
            WHOLE: cut(encoded, encoded.shape[1]),
        }
        _drop_failing(field, inputs, batch)
        works: dict = {one.entry: partial(one.decode, inputs[one.entry.span]) for one in field.contestants}
        if subject.encode is not None:
            works[_ENCODER] = partial(subject.encode, batch)
        timed = take_turns(works, plan.repeats, plan.warm_up_rounds, plan.device)
        encoder = timed[_ENCODER].seconds if _ENCODER in timed else None
        labels = {one.entry: one.labels(timed[one.entry].result) for one in field.contestants}
        standards = {entry: timed.get(replace(_STANDARD, driver=entry.driver)) for entry in labels}
        yield [
            Figures(
                entry=entry,
                batch=batch,
                audio_s=batch * subject.stream_s,
                decoder=timed[entry].seconds,
                encoder=encoder,
                labels=sum(map(len, found)),
                streams_as_label_looping=_share_of_same(found, labels.get(_STANDARD)),
                total_to_label_looping=_total_to(standards[entry], timed[entry], timed.get(_ENCODER)),
                decoder_to_label_looping=_decoder_to(standards[entry], timed[entry]),
                rounds_s=timed[entry].rounds_s,
            )
            for entry, found in labels.items()
        ]


def _drop_failing(field: Field, inputs: dict[str, list[Chunk]], batch: int) -> None:
    """Runs everybody once."""
    for one in list(field.contestants):
        try:
            one.labels(one.decode(inputs[one.entry.span]))
        except failures() as error:
            field.contestants.remove(one)
            reason = f"failed at batch {batch}: {type(error).__name__}: {error}"
            field.absent.append(Absence(one.entry, reason, is_failure=True))


def _share_of_same(found: list[list[int]], standard: list[list[int]] | None) -> float | None:
    return None if standard is None else sum(map(eq, found, standard)) / len(found)


def _decoder_to(standard: Timed | None, timed: Timed) -> float | None:
    return None if standard is None else paired_ratio(timed.rounds_s, standard.rounds_s)


def _total_to(standard: Timed | None, timed: Timed, encoder: Timed | None) -> float | None:
    if standard is None or encoder is None:
        return None
    mine, standards = (list(map(add, encoder.rounds_s, one.rounds_s)) for one in (timed, standard))
    return paired_ratio(mine, standards)
