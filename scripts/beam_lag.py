"""How far beam search stays behind greedy search: the price of results that do not depend on chunks.

    python scripts/beam_lag.py --manifest FILE.jsonl [--model BUNDLE] [--context L,R] [--beams 2 4 8] [--limit N]
        [--durations 0 1 2 3 4] [--out FILE.json]

After every chunk each utterance's lag is taken: encoder frames from the slowest hypothesis to the last one seen, where
greedy search always stands. Lines of the manifest are JSON with "audio_filepath" (relative to the manifest). Prints a
table; --out writes the counts too. With --durations an RNN-T model gets a random duration head over that list on its
joint, for a look at TDT where no TDT model is at hand: its jumps mean nothing, so take it as an order of magnitude.
"""

import argparse
import collections
import dataclasses
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from penstock.audio import read_audio
from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from penstock.decoding.beam_search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding.beam_state import fresh_rows
from penstock.decoding.networks import Scores, TransducerNetwork
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock.reporting.table import markdown_table
from penstock.slot_ledger import SlotLedger
from penstock.stages.encoder import EncoderRequest, EncoderStage
from penstock.stages.features import AudioRequest, FeatureStage
from penstock.streams import StreamTable, slot_count

ROOT = Path(__file__).parents[1]


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
    most: int
    forced_on: int
    counts: dict[int, int]


class WithRandomDurations:
    """An RNN-T network with a duration head that prefers one at random for each label and frame."""

    def __init__(self, rnnt: TransducerNetwork, durations: tuple[int, ...]):
        self._rnnt = rnnt
        self.config = dataclasses.replace(rnnt.config, tdt_durations=durations)
        self._weight = 3.0 * torch.randn(rnnt.joint_hidden, len(durations), generator=torch.Generator().manual_seed(0))
        self._weight /= rnnt.joint_hidden**0.5

    def __getattr__(self, name: str) -> object:
        return getattr(self._rnnt, name)

    def score(self, frame_rows: torch.Tensor, predictor_rows: torch.Tensor) -> Scores:
        """As the network's."""
        scores = self._rnnt.score(frame_rows, predictor_rows)
        hidden = (frame_rows + predictor_rows).relu().flatten(0, -2)
        return scores._replace(durations=(hidden @ self._weight).log_softmax(dim=1))


def main() -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    checkpoint = Checkpoint(arguments.model)
    wanted = AttentionContext(*map(int, arguments.context.split(","))) if arguments.context else None
    context = checkpoint.config.encoder.select_context(wanted)
    with torch.inference_mode():
        utterances = encode_all(checkpoint, context, read_manifest(arguments.manifest, arguments.limit))
        networks = {"RNN-T" if not checkpoint.config.transducer.is_tdt else "TDT": TransducerNetwork(checkpoint)}
        if arguments.durations:
            networks["TDT (random head)"] = WithRandomDurations(networks["RNN-T"], tuple(arguments.durations))
        lags = [
            measure(name, network, utterances, algorithm, beam_size, context.chunk_encoder_frames)
            for name, network in networks.items()
            for algorithm in BeamAlgorithm
            for beam_size in arguments.beams
        ]
    print(table(lags))
    if arguments.out:
        arguments.out.write_text(json.dumps([row._asdict() for row in lags], indent=1) + "\n", encoding="utf-8")
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "an4-rnnt-hybrid", metavar="BUNDLE")
    parser.add_argument("--context", metavar="L,R", help="the checkpoint's first by default")
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 8], metavar="K")
    parser.add_argument("--limit", type=int, metavar="N", help="utterances, from the first on")
    parser.add_argument("--durations", type=int, nargs="+", metavar="FRAMES")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args()


def encode_all(checkpoint: Checkpoint, context: AttentionContext, utterances: list[Utterance]) -> list[torch.Tensor]:
    """Encoder output [T, D] of each utterance, each in a slot of its own."""
    ledger = SlotLedger(slot_count(len(utterances)))
    streams = StreamTable(len(utterances), ledger, float("inf"))
    features = FeatureStage(checkpoint, context, streams, "cpu")
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
    """Decodes all utterances side by side, chunk by chunk."""
    search = BeamSearch(network, algorithm)
    rows = fresh_rows(network, len(utterances), BeamSizes(beam_size))
    lengths = torch.tensor([len(encoded) for encoded in utterances])
    frame_rows = network.project_encoder(torch.nn.utils.rnn.pad_sequence(utterances, batch_first=True))
    lags: list[int] = []
    for at in range(0, int(lengths.max()), chunk):
        piece = frame_rows[:, at : at + chunk]
        sizes = (lengths - at).clamp(0, piece.shape[1])
        is_end = lengths <= at + sizes
        update, rows = search.decode(piece, sizes, is_end, rows)
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
        most=lags[-1],
        forced_on=int(rows.forced_on.sum()),
        counts=dict(sorted(collections.Counter(lags).items())),
    )


def table(lags: list[Lags]) -> str:
    """Markdown."""
    header = ["model", "search", "beam", "chunk", "chunks", "mean lag", "median", "95 %", "most", "forced on"]
    rows = [(*r[:5], f"{r.mean:.2f}", r.median, r.p95, r.most, r.forced_on) for r in lags]
    return markdown_table(header, rows)


if __name__ == "__main__":
    sys.exit(main())
