"""Compares the search over a decoding graph with kaldi-decoder on the same frames: words, costs and time.

    python -m benchmarks.wfst --manifest FILE.jsonl --graph G.safetensors --fst G.fst [--model BUNDLE] [--context L,R]
        [--beams 10] [--batch 1 32] [--lm-weight W] [--boosted-words 100] [--rounds 5] [--limit N]

The graph and its transducer come from `penstock graph build`. Both run on one thread and take turns; times are the
thread's CPU time, so other load on the machine counts less. Ratios are medians over rounds. kaldi-decoder searches with
`min_active` 0 and without `max_active`; it gets one utterance after the other, and its trace-back is included.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.beam_lag import encode_all
from benchmarks.results import ROOT
from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.search import WfstSearch
from penstock.decoding.wfst.sizes import WfstLimits, WfstSizes
from penstock.decoding.wfst.start import StartChoices, StartStates
from penstock.decoding.wfst.state import WfstStateStore
from penstock.evaluation.manifest import read_manifest
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.reporting import markdown_table
from penstock.scoring.wfst.graph_file import NO_WORD, DecodingGraph, read_graph


class Found(NamedTuple):
    """The best path of an utterance."""

    words: list[int]
    cost: float


class Penstock:
    """The search in chunks, a batch of streams at a time."""

    def __init__(self, graph: DecodingGraph, beam: float, lm_weight: float, chunk_frames: int, batch: int):
        device_graph = DeviceGraph(graph)
        self._search = WfstSearch(device_graph, WfstSizes(), WfstLimits(beam))
        self._start = StartStates(graph, device_graph, self._search.sizes, beam)
        self._store = WfstStateStore(device_graph, batch, self._search.sizes)
        self._weight, self._chunk_frames, self._batch = lm_weight, chunk_frames, batch
        self._word_count = len(graph.words)

    def run(self, utterances: list[torch.Tensor], boosted_words: int = 0) -> list[Found]:
        """Searches log-probabilities [T, V + 1]; boosted_words: random ones, of each stream others."""
        found = []
        for first in range(0, len(utterances), self._batch):
            found += self._run(utterances[first : first + self._batch], boosted_words)
        return found

    @torch.inference_mode()
    def _run(self, rows: list[torch.Tensor], boosted_words: int) -> list[Found]:
        slots, boosts = torch.arange(len(rows)), None
        choices = [StartChoices(self._weight)] * len(rows)
        if boosted_words:
            table = np.zeros((len(rows), self._word_count), np.float32)
            chance = np.random.default_rng(0)
            for row in table:
                row[chance.choice(np.arange(1, len(row)), min(boosted_words, len(row) - 1), replace=False)] = 1.0
            boosts = StreamBoosts(torch.from_numpy(table), slots, None)
            choices = [StartChoices(self._weight, row) for row in table]
        self._store.scatter(slots, self._start.build(choices))
        scores = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        left = torch.tensor([len(row) for row in rows])
        words: list[list[int]] = [[] for _ in rows]
        for part in scores.split(self._chunk_frames, dim=1):
            taken = left.clamp(max=part.shape[1])
            left = left - taken
            path, states = self._search.decode(part, taken, left == 0, self._store.gather(slots), boosts)
            self._store.scatter(slots, states)
            stable, lengths, nodes = path.stable.tolist(), path.lengths.tolist(), path.words
            for row in range(len(rows)):
                words[row] += nodes[row, : stable[row]].tolist()
        for row in range(len(rows)):
            words[row] += nodes[row, stable[row] : lengths[row]].tolist()
        costs = path.costs.tolist()
        return [Found([w for w in row if w != NO_WORD], cost) for row, cost in zip(words, costs, strict=True)]


class KaldiDecoder:
    """kaldi-decoder's `FasterDecoder`. The graph's weights stay as they are: emissions and beam are scaled instead."""

    def __init__(self, path: Path, beam: float, lm_weight: float):
        import kaldi_decoder
        import kaldifst

        self._kaldi, self._kaldifst = kaldi_decoder, kaldifst
        self._fst = kaldifst.StdConstFst(kaldifst.StdVectorFst.read(str(path)))
        self._options = kaldi_decoder.FasterDecoderOptions(beam=beam / lm_weight, max_active=2**31 - 1, min_active=0)
        self._weight = lm_weight

    def run(self, utterances: list[np.ndarray]) -> list[Found]:
        """Searches log-probabilities divided by the weight of the graph."""
        return [self._search(scores) for scores in utterances]

    def _search(self, scores: np.ndarray) -> Found:
        decoder = self._kaldi.FasterDecoder(self._fst, self._options)
        decoder.decode(self._kaldi.DecodableCtc(scores))
        _, path = decoder.get_best_path()
        _, _, words, weight = self._kaldifst.get_linear_symbol_sequence(path)
        return Found(words, (weight.value1 + weight.value2) * self._weight)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 where words differ."""
    args = _parse(argv)
    torch.set_num_threads(1)
    checkpoint, graph = Checkpoint(args.model), read_graph(args.graph)
    selected = AttentionContext(*map(int, args.context.split(","))) if args.context else None
    context = checkpoint.config.encoder.select_context(selected)
    with torch.inference_mode():
        head = CtcHead(checkpoint)
        encoded = encode_all(checkpoint, context, read_manifest(args.manifest, args.limit))
        scores = sorted((head.log_probs(frames[None])[0] for frames in encoded), key=len)
    frames = sum(map(len, scores))
    audio_s = frames * checkpoint.config.encoder_frame_ms / 1000
    scaled = [np.ascontiguousarray(row.numpy() / args.lm_weight, dtype=np.float32) for row in scores]
    rows, is_same = [], True
    for beam in args.beams:
        kaldi = KaldiDecoder(args.fst, beam, args.lm_weight)
        for batch in args.batch:
            penstock = Penstock(graph, beam, args.lm_weight, context.chunk_encoder_frames, batch)
            tasks: list[Callable[[], list[Found]]] = [
                lambda penstock=penstock: penstock.run(scores),
                lambda kaldi=kaldi: kaldi.run(scaled),
                lambda penstock=penstock: penstock.run(scores, args.boosted_words),
            ]
            seconds, (ours, theirs, _) = _take_turns(tasks, args.rounds)
            same = sum(a.words == b.words for a, b in zip(ours, theirs, strict=True))
            is_same &= same == len(scores)
            apart = max(abs(a.cost - b.cost) for a, b in zip(ours, theirs, strict=True))
            rows.append((*_row(beam, batch, seconds, frames, audio_s), f"{same} of {len(scores)}", f"{apart:.4f}"))
    columns = ["beam", "batch", "us/frame", "RTFx", "kaldi-decoder us/frame", "ratio", "boosted", "same words", "cost"]
    print(markdown_table(columns, rows))
    return 0 if is_same else 1


def _take_turns(tasks: list[Callable[[], Any]], rounds: int) -> tuple[list[list[float]], list[Any]]:
    """CPU seconds of each task in each round after a warm-up, and the last results."""
    seconds: list[list[float]] = [[] for _ in tasks]
    results: list[Any] = []
    for number in range(rounds + 1):
        results = []
        for task, each in zip(tasks, seconds, strict=True):
            start = time.thread_time()
            results.append(task())
            if number:
                each.append(time.thread_time() - start)
    return seconds, results


def _row(beam: float, batch: int, seconds: list[list[float]], frames: int, audio_s: float) -> tuple[object, ...]:
    """Times and ratios of a table's row."""
    ours, theirs, boosted = seconds
    own = statistics.median(ours)
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    more = statistics.median(b / a for a, b in zip(ours, boosted, strict=True))
    kaldi = statistics.median(theirs)
    return (
        f"{beam:g}", batch, f"{own / frames * 1e6:.1f}", f"{audio_s / own:.0f}", f"{kaldi / frames * 1e6:.1f}",
        f"{ratio:.3f}", f"{more:.2f}x",
    )  # fmt: skip


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE.jsonl", help="NeMo manifest")
    parser.add_argument("--graph", type=Path, required=True, metavar="G.safetensors", help="decoding graph")
    parser.add_argument("--fst", type=Path, required=True, metavar="G.fst", help="the same graph for OpenFst")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "models" / "an4-rnnt-hybrid", metavar="BUNDLE", help="bundle to measure"
    )
    parser.add_argument("--context", metavar="L,R", help="default: the checkpoint's")
    parser.add_argument("--beams", type=float, nargs="+", default=[10.0], metavar="NATS", help="beams (10)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32], metavar="N", help="streams in a batch (1 32)")
    parser.add_argument("--lm-weight", type=float, default=1 / 3, metavar="W", help="weight of the graph (1/3)")
    parser.add_argument("--boosted-words", type=int, default=100, metavar="N", help="words of each stream's list (100)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="counted rounds (5)")
    parser.add_argument("--limit", type=int, metavar="N", help="first N utterances")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
