"""Measures WER against the language model weight: Figure 2 of Grigoryan et al. for any model and manifest.

    python -m benchmarks.fusion_weights --lm FILE --manifest FILE.jsonl [--model BUNDLE] [--context L,R]... [--limit N]
        [--algorithms alsd,aes] [--beam K] [--weights 0,0.1,...] [--json FILE.json] [--plot FILE.png]

Every utterance is encoded once for each context (all of the model's by default) and decoded whole: by greedy search
with the language model, and by each beam search with the paper's four strategies, equations 2 and 3 (`BlankScoring`)
with early and late pruning. The weight 0, no language model, is always among the weights. The weight with the fewest
errors is chosen on the same utterances; "other speakers" is the WER with each speaker's weight chosen on all others.
Needs jiwer (extra `evaluate`), and matplotlib for --plot.
"""

import argparse
import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.beam_lag import encode_all
from benchmarks.results import ROOT, progress
from penstock.decoding.beam import state as beam_state
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch
from penstock.decoding.beam.sizes import BeamSizes
from penstock.decoding.greedy import state as greedy_state
from penstock.decoding.greedy.label_looping import LabelLooping
from penstock.decoding.networks import open_network
from penstock.errors import PackageError, PenstockError, RunError
from penstock.evaluation.errors import EditCounts, bootstrap_interval, compare, total
from penstock.evaluation.manifest import Utterance, read_manifest
from penstock.extras import install_command
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, parse_context
from penstock.model.tokenizer import Tokenizer
from penstock.reporting import check_writable, commit, date_utc, describe_hardware, markdown_table
from penstock.scoring.fusion import Fusion, FusionStates
from penstock.scoring.fusion_rules import BlankScoring, FusionStrategy, Pruning
from penstock.scoring.ngram.io import load_ngram_lm, read_token_names
from penstock.scoring.ngram.lm import NgramLm

GREEDY = "greedy"
TITLES = {GREEDY: "greedy", "alsd": "ALSD++", "aes": "AES++"}
EQUATIONS = {BlankScoring.LABELS_ONLY: "eq. 2", BlankScoring.BLANK_TOO: "eq. 3"}
STRATEGIES = [FusionStrategy(equation, pruning) for equation in BlankScoring for pruning in Pruning]


class Point(NamedTuple):
    """All utterances decoded with one search, strategy and weight."""

    context: str
    search: str
    """`GREEDY`, or the value of a `BeamAlgorithm`."""
    strategy: str
    """From `strategy_name`; "" for greedy search."""
    weight: float
    words: list[EditCounts]
    """Word edits of each utterance."""

    @property
    def counts(self) -> EditCounts:
        """Word edits of all utterances."""
        return total(self.words)


class Encoded(NamedTuple):
    """B utterances, ready to be decoded."""

    projected_frames: torch.Tensor
    """[B, T, J]"""
    lengths: torch.Tensor
    """[B] int64, encoder frames"""


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.threads)
    try:
        utterances, points = check_and_measure(arguments)
    except PenstockError as error:
        progress(f"benchmarks.fusion_weights: error: {error}")
        return 1
    speakers = [utterance.speaker or str(utterance.line) for utterance in utterances]
    print(summary(points, speakers))
    if arguments.json:
        arguments.json.write_text(json.dumps(document(arguments, points), indent=1) + "\n", encoding="utf-8")
    if arguments.plot:
        plot(points, arguments.plot, f"{len(utterances)} utterances, beam {arguments.beam}")
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lm", type=Path, required=True, metavar="FILE", help="ARPA, or compiled")
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE.jsonl", help="NeMo manifest")
    parser.add_argument(
        "--model", type=Path, default=ROOT / "models" / "an4-rnnt-hybrid", metavar="BUNDLE", help="bundle to measure"
    )
    parser.add_argument("--context", action="append", metavar="L,R", help="may be repeated; default: all")
    parser.add_argument(
        "--algorithms", type=algorithms, default=list(BeamAlgorithm), metavar="alsd,aes", help="beam searches (both)"
    )
    parser.add_argument("--beam", type=int, default=4, metavar="K", help="beam size (4)")
    parser.add_argument(
        "--weights",
        type=weights,
        default=weights("0,.05,.1,.15,.2,.3,.4,.5,.6,.8,1,1.2"),
        help="language model weights, with commas between them",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="first N utterances")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (1)")
    parser.add_argument("--json", type=Path, metavar="FILE.json", help="every figure")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="WER against weight")
    return parser.parse_args(argv)


def algorithms(text: str) -> list[BeamAlgorithm]:
    """ "alsd,aes" """
    return [BeamAlgorithm(name) for name in text.split(",")]


def weights(text: str) -> list[float]:
    """Ascending and without duplicates; 0 is always included."""
    found = {0.0, *map(float, text.split(","))}
    if not all(0 <= weight < math.inf for weight in found):
        raise ValueError("weights are numbers of at least 0")
    return sorted(found)


def check_and_measure(arguments: argparse.Namespace) -> tuple[list[Utterance], list[Point]]:
    """Checks all inputs before the work. Raises PenstockError."""
    required = {"jiwer": install_command("evaluate")}
    if arguments.plot:
        required["matplotlib"] = "pip install matplotlib, or omit --plot"
    for package, remedy in required.items():
        if not is_installed(package):
            raise PackageError(f"{package} is needed: {remedy}")
    for path in filter(None, (arguments.json, arguments.plot)):
        check_writable(path)
    checkpoint = Checkpoint(arguments.model)
    lm = load_ngram_lm(arguments.lm, read_token_names(checkpoint.tokenizer_path))
    encoder = checkpoint.config.encoder
    selected = [parse_context(text) for text in arguments.context or ()]
    contexts = [encoder.select_context(context) for context in selected or encoder.contexts]
    utterances = read_manifest(arguments.manifest, arguments.limit)
    measure = Measure(checkpoint, lm, utterances, arguments.weights)
    points = []
    for context in contexts:
        progress(f"context [{context.left},{context.right}]: encoding {len(utterances)} utterances")
        with torch.inference_mode():
            frames = encode_all(checkpoint, context, utterances)
            points += measure.all_points(context, frames, arguments.algorithms, arguments.beam)
    return utterances, points


def is_installed(package: str) -> bool:
    """Whether it can be imported; it is not imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a stand-in module without __spec__
        return False


class Measure:
    """Decodes with every search, strategy and weight, and counts word errors."""

    def __init__(self, checkpoint: Checkpoint, lm: NgramLm, utterances: list[Utterance], weights: list[float]):
        self._network = open_network(checkpoint)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._lm, self._fusion = lm, Fusion(lm)
        self._references = [utterance.reference for utterance in utterances]
        self._weights = weights

    def all_points(
        self, context: AttentionContext, frames: list[torch.Tensor], searches: list[BeamAlgorithm], beam_size: int
    ) -> Iterator[Point]:
        """Greedy search, then each beam search with each strategy, with each weight."""
        place = f"[{context.left},{context.right}]"
        rows = self._network.project_encoder(torch.nn.utils.rnn.pad_sequence(frames, batch_first=True))
        encoded = Encoded(rows, torch.tensor([len(each) for each in frames]))
        for weight in self._weights:
            yield Point(place, GREEDY, "", weight, self._errors(self.greedy(encoded, weight)))
        for algorithm, strategy in itertools.product(searches, STRATEGIES):
            search = BeamSearch(self._network, algorithm, self._fusion, strategy)
            for weight in self._weights:
                found = self._errors(self.beam(search, encoded, beam_size, weight))
                yield Point(place, algorithm.value, strategy_name(strategy), weight, found)
            progress(f"context {place}: {TITLES[algorithm.value]}, {strategy_name(strategy)}")

    def greedy(self, encoded: Encoded, weight: float) -> list[list[int]]:
        """Labels of each utterance."""
        batch = len(encoded.lengths)
        states = greedy_state.fresh_states(self._network, batch)._replace(fusion=self._fusion_states(batch, weight))
        hyps, _ = LabelLooping(self._network, fusion=self._fusion).decode(*encoded, states)
        return _below(hyps.labels, hyps.lengths)

    def beam(self, search: BeamSearch, encoded: Encoded, beam_size: int, weight: float) -> list[list[int]]:
        """Labels of each utterance's best hypothesis, the end of the sentence scored."""
        batch = len(encoded.lengths)
        sizes = BeamSizes(beam_size)
        states = beam_state.fresh_states(self._network, batch, sizes, fusion=self._fusion_states(batch, weight))
        update, states = search.decode(*encoded, torch.ones(batch, dtype=torch.bool), states)
        if int(states.pruned_hypotheses.sum()):
            raise RunError("hypotheses were pruned: these utterances are too long to be decoded whole")
        unstable = search.n_best(states).unstable
        stable = _below(update.stable.tokens.labels, update.stable.lengths)
        best = _below(unstable.tokens.labels[:, 0], unstable.lengths[:, 0])
        return [first + rest for first, rest in zip(stable, best, strict=True)]

    def _fusion_states(self, batch: int, weight: float) -> FusionStates:
        start = torch.full((batch,), self._lm.start_state, dtype=torch.int64)
        return FusionStates(start, torch.zeros_like(start), torch.full((batch,), weight))

    def _errors(self, labels: list[list[int]]) -> list[EditCounts]:
        texts = map(self._tokenizer.decode, labels)
        return [compare(*pair).words for pair in zip(self._references, texts, strict=True)]


def _below(labels: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    return [row[:length] for row, length in zip(labels.tolist(), lengths.tolist(), strict=True)]


def strategy_name(strategy: FusionStrategy) -> str:
    """The strategy in plots and tables, for example "eq. 3 late"."""
    return f"{EQUATIONS[strategy.blank_scoring]} {strategy.pruning.value}"


def curves(points: Sequence[Point]) -> dict[tuple[str, str, str], list[Point]]:
    """The points of each (context, search, strategy), by weight."""
    found = defaultdict(list)
    for point in points:
        found[point[:3]].append(point)
    return {key: sorted(curve, key=lambda point: point.weight) for key, curve in found.items()}


def best_of(curve: Sequence[Point]) -> Point:
    """The point with the fewest errors; ties go to the lowest weight."""
    return min(curve, key=lambda point: (point.counts.edits, point.weight))


def errors_with_weight_of_other_speakers(curve: Sequence[Point], speakers: Sequence[str]) -> int:
    """Word errors with the weight for each speaker chosen on all other speakers."""
    edits = 0
    for speaker in set(speakers):
        is_own = [each == speaker for each in speakers]

        def of_others(point: Point, is_own: list[bool] = is_own) -> int:
            return sum(word.edits for word, own in zip(point.words, is_own, strict=True) if not own)

        chosen = min(curve, key=of_others)
        edits += sum(word.edits for word, own in zip(chosen.words, is_own, strict=True) if own)
    return edits


def summary(points: Sequence[Point], speakers: Sequence[str]) -> str:
    """A table with the best weight of each curve."""
    by_key = curves(points)
    header = ["context", "search", "strategy", "WER % no LM", "best weight", "WER %", "95 % interval", "sub", "del"]
    header += ["ins", "reduction to greedy", "to no LM", "WER % other speakers"]
    lines = []
    for (context, search, strategy), curve in by_key.items():
        best, without = best_of(curve), curve[0].counts
        counts = best.counts
        greedy = by_key[context, GREEDY, ""][0].counts
        interval = bootstrap_interval([w.edits for w in best.words], [w.reference_units for w in best.words])
        elsewhere = errors_with_weight_of_other_speakers(curve, speakers) / counts.reference_units
        line = [context, TITLES[search], strategy, percent(without.rate), f"{best.weight:g}", percent(counts.rate)]
        line += [" to ".join(map(percent, interval)), counts.substitutions, counts.deletions, counts.insertions]
        lines.append([*line, gain(greedy, counts), gain(without, counts), percent(elsewhere)])
    return markdown_table(header, lines)


def percent(rate: float) -> str:
    """A rate as a percentage."""
    return f"{100 * rate:.1f}"


def gain(before: EditCounts, after: EditCounts) -> str:
    """Relative reduction of errors in percent."""
    return f"{100 * (1 - after.edits / before.edits):.1f} %" if before.edits else "-"


def document(arguments: argparse.Namespace, points: Sequence[Point]) -> dict:
    """The result as JSON values."""
    fields = ("substitutions", "deletions", "insertions")
    return {
        "date": date_utc(),
        "commit": commit(),
        "hardware": describe_hardware(),
        "beam": arguments.beam,
        "points": [
            dict(zip(Point._fields[:4], point[:4], strict=True))
            | {field: getattr(point.counts, field) for field in fields}
            | {"wer": point.counts.rate, "edits": [word.edits for word in point.words]}
            for point in points
        ],
    }


def plot(points: Sequence[Point], path: Path, subtitle: str) -> None:
    """WER against weight, a panel for each context and beam search; greedy search in all of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_key = curves(points)
    contexts = list(dict.fromkeys(point.context for point in points))
    searches = list(dict.fromkeys(point.search for point in points if point.search != GREEDY))
    size = (4.6 * len(searches), 3.4 * len(contexts) + 0.9)
    figure, axes = pyplot.subplots(len(contexts), len(searches), squeeze=False, sharex=True, sharey="row", figsize=size)
    colors, styles = {"eq. 2": "tab:orange", "eq. 3": "tab:blue"}, {"early": "--", "late": "-"}
    for (row, context), (column, search) in itertools.product(enumerate(contexts), enumerate(searches)):
        axis = axes[row][column]
        greedy = by_key[context, GREEDY, ""]
        axis.axhline(100 * greedy[0].counts.rate, color="grey", linestyle=":", label="greedy, no LM")
        _draw(axis, greedy, color="grey", label="greedy with LM")
        for name in map(strategy_name, STRATEGIES):
            equation, pruning = name.rsplit(" ", 1)
            _draw(axis, by_key[context, search, name], color=colors[equation], linestyle=styles[pruning], label=name)
        axis.set_title(f"{TITLES[search]}, context {context}", fontsize=10)
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("weight of the language model")
    for axis in axes[:, 0]:
        axis.set_ylabel("WER, %")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(subtitle, fontsize=10)
    figure.tight_layout(rect=(0, 0.7 / size[1], 1, 1))
    figure.savefig(path, dpi=80, pil_kwargs={"optimize": True})
    pyplot.close(figure)


def _draw(axis: object, curve: Sequence[Point], **style: object) -> None:
    rates = [100 * point.counts.rate for point in curve]
    axis.plot([point.weight for point in curve], rates, marker="o", markersize=3, **style)


if __name__ == "__main__":
    sys.exit(main())
