"""Measures how many frames beam search lags behind greedy search so that results do not depend on chunks.

    python -m benchmarks.beam_lag --manifest FILE.jsonl [--model BUNDLE] [--context L,R] [--beams 2 4 8] [--limit N]
        [--durations 0 1 2 3 4] [--json FILE]

The lag of an utterance after a chunk is the number of encoder frames from its slowest hypothesis to the last frame
received; that of greedy search is 0. Lines of the manifest are JSON with "audio_filepath" (relative to the manifest).
Prints a table; --json also writes the counts. With --durations an RNN-T model gets a random duration head over that
list: an order of magnitude for TDT without a TDT model.
"""

import argparse
import collections
import dataclasses
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.results import ROOT
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam.sizes import BeamSizes
from penstock.decoding.beam.state import fresh_states
from penstock.decoding.networks import open_network
from penstock.decoding.transducer import Scores, TransducerNetwork
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import StreamTable, slot_count
from penstock.pipeline.stages.audio_rows import AudioRequest
from penstock.pipeline.stages.encoder import EncoderRequest, EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock.reporting import markdown_table


class Lags(NamedTuple):
    """One row of the table."""

    model: str
    search: str
    beam_size: int
    chunk_encoder_frames: int
    chunks: int
    mean: float
    median: int
    p95: int
    max: int
    forced_blanks: int
    counts: dict[int, int]


class WithRandomDurations:
    """An RNN-T network with a random duration head."""

    def __init__(self, rnnt: TransducerNetwork, durations: tuple[int, ...]):
        self._rnnt = rnnt
        self.config = dataclasses.replace(rnnt.config, tdt_durations=durations)
        self._weight = 3.0 * torch.randn(rnnt.frame_width, len(durations), generator=torch.Generator().manual_seed(0))
        self._weight /= rnnt.frame_width**0.5

    def __getattr__(self, name: str) -> object:
        return getattr(self._rnnt, name)

    def score(self, projected_frames: torch.Tensor, projected_predictions: torch.Tensor, ilm: tuple = ()) -> Scores:
        """The network's scores, with random scores of durations."""
        scores = self._rnnt.score(projected_frames, projected_predictions)
        hidden = (projected_frames + projected_predictions).relu().flatten(0, -2)
        return scores._replace(durations=(hidden @ self._weight).log_softmax(dim=1))


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)
    checkpoint = Checkpoint(arguments.model)
    selected = AttentionContext(*map(int, arguments.context.split(","))) if arguments.context else None
    context = checkpoint.config.encoder.select_context(selected)
    with torch.inference_mode():
        utterances = encode_all(checkpoint, context, read_manifest(arguments.manifest, arguments.limit))
        networks = {"RNN-T" if not checkpoint.config.transducer.is_tdt else "TDT": open_network(checkpoint)}
        if arguments.durations:
            networks["TDT (random head)"] = WithRandomDurations(networks["RNN-T"], tuple(arguments.durations))
        lags = [
            measure(name, network, utterances, algorithm, beam_size, context.chunk_encoder_frames)
            for name, network in networks.items()
            for algorithm in BeamAlgorithm
            for beam_size in arguments.beams
        ]
    print(table(lags))
    if arguments.json:
        arguments.json.write_text(json.dumps([row._asdict() for row in lags], indent=1) + "\n", encoding="utf-8")
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE.jsonl", help="NeMo manifest")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "models" / "an4-rnnt-hybrid", metavar="BUNDLE", help="bundle to measure"
    )
    parser.add_argument("--context", metavar="L,R", help="default: the first of the checkpoint")
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 8], metavar="K", help="beam sizes (2 4 8)")
    parser.add_argument("--limit", type=int, metavar="N", help="first N utterances")
    parser.add_argument(
        "--durations", type=int, nargs="+", metavar="FRAMES", help="random duration head with these durations"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    return parser.parse_args(argv)


def encode_all(checkpoint: Checkpoint, context: AttentionContext, utterances: list[Utterance]) -> list[torch.Tensor]:
    """Encoder output [T, D] of each utterance, in a slot per utterance."""
    ledger = SlotLedger(slot_count(len(utterances)))
    streams = StreamTable(len(utterances), ledger, float("inf"))
    features = FeatureStage(checkpoint, context, streams)
    encoder = EncoderStage(checkpoint, context, streams.slots, ledger, "cpu")
    found = []
    for number, utterance in enumerate(utterances):
        samples = read_audio(utterance.audio, checkpoint.config.features.sample_rate_hz)
        (reply,) = features.process([AudioRequest(number, samples, is_start=True, is_end=True)])
        (frames,) = encoder.process([EncoderRequest(reply.lease, reply.chunks, True)])
        found.append(frames)
    return found


def measure(
    name: str,
    network: TransducerNetwork,
    utterances: list[torch.Tensor],
    algorithm: BeamAlgorithm,
    beam_size: int,
    chunk: int,
) -> Lags:
    """Decodes all utterances in one batch, chunk by chunk."""
    search = BeamSearch(network, algorithm)
    states = fresh_states(network, len(utterances), BeamSizes(beam_size))
    lengths = torch.tensor([len(encoded) for encoded in utterances])
    projected_frames = network.project_encoder(torch.nn.utils.rnn.pad_sequence(utterances, batch_first=True))
    lags: list[int] = []
    for at in range(0, int(lengths.max()), chunk):
        frames = projected_frames[:, at : at + chunk]
        sizes = (lengths - at).clamp(0, frames.shape[1])
        is_end = lengths <= at + sizes
        update, states = search.decode(frames, sizes, is_end, states)
        lags += update.lag_encoder_frames[~is_end].tolist()
    lags.sort()
    return Lags(
        model=name,
        search=algorithm.value,
        beam_size=beam_size,
        chunk_encoder_frames=chunk,
        chunks=len(lags),
        mean=sum(lags) / len(lags),
        median=lags[len(lags) // 2],
        p95=lags[int(len(lags) * 0.95)],
        max=lags[-1],
        forced_blanks=int(states.forced_blanks.sum()),
        counts=dict(sorted(collections.Counter(lags).items())),
    )


def table(lags: list[Lags]) -> str:
    """Markdown."""
    header = ["model", "search", "beam", "chunk", "chunks", "mean lag", "median", "p95", "max", "forced blanks"]
    rows = [(*r[:5], f"{r.mean:.2f}", r.median, r.p95, r.max, r.forced_blanks) for r in lags]
    return markdown_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
