"""Compares decoders of a CTC head: word errors, boosts, speed and latency of the search over a decoding graph.

    python -m benchmarks.wfst --graph G.safetensors [--graph COMPACT.safetensors] [--manifest FILE] [--lm PIECES.arpa]
        [--word-lm WORDS.arpa] [--only accuracy,boosts,search,pipeline,latency] [--json FILE]

Reproduces the tables of Galvez and Kaldewey, "GPU-accelerated WFST beam search decoder for CTC-based speech
recognition": word error rates of decoders and topologies (table 1), speed of the pipeline and of the search (2, 3),
latency under load beside the M/D/1 queue (4), and boosts (figure 6). A peer takes part where it is installed:
kaldi-decoder with a file G.fst beside the graph (`penstock graph build --openfst`), flashlight-text with --word-lm.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.beam_lag import encode_all
from benchmarks.recognizer import BUNDLE, MANIFEST, read_recordings
from benchmarks.results import describe, environment, progress, publish
from benchmarks.wfst_accuracy import Accuracy, GraphFiles, boost_rows, check_parity, emissions
from benchmarks.wfst_report import RENDERERS
from benchmarks.wfst_speed import Load, Pipeline, boost_cost, pipeline_decoders, pipeline_rows, search_rows
from benchmarks.wfst_systems import missing_peer
from benchmarks.workload import bundle_workload, cut_streams
from penstock.decoding.ctc.head import CtcHead
from penstock.decoding.wfst.sizes import WfstLimits, WfstSizes
from penstock.errors import PenstockError
from penstock.evaluation.manifest import read_manifest
from penstock.kernels.capability import AUTO, KERNELS
from penstock.model.bundle import Checkpoint
from penstock.model.config import parse_context
from penstock.model.tokenizer import Tokenizer
from penstock.runtime import check_device, prepare_process
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.wfst.graph_file import read_graph
from penstock_client.options import CTC, GREEDY, WFST

LM_WEIGHT = 1 / 3
_PHRASE_BYTES = 1 << 28
_OF_WINDOW = ("streams", "seconds", "models", "chunk_latency_ms", "final_latency_ms", "rtfx", "late_share", "passed")


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = parse_arguments(argv)
    prepare_process(arguments.threads)
    here = environment(arguments.threads, arguments.device)
    document: dict = {"environment": here, "model": arguments.model.name, "beam": arguments.beam}
    try:
        benchmark = Benchmark(arguments)
        for name in arguments.only:
            progress(name)
            document[name] = PARTS[name](benchmark)
            publish(to_markdown(document), document, arguments.json, is_quiet=name != arguments.only[-1])
    except PenstockError as error:
        progress(f"benchmarks.wfst: error: {error}")
        return 1
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", type=Path, default=BUNDLE, metavar="BUNDLE", help="bundle with a CTC head")
    add("--graph", type=Path, action="append", required=True, metavar="FILE", help="may be repeated: topologies")
    add("--manifest", type=Path, default=MANIFEST, help="recordings, a NeMo manifest")
    add("--lm", type=Path, metavar="FILE", help="language model of the tokenizer's pieces, for ctc_beam")
    add("--word-lm", type=Path, metavar="FILE", help="language model of words (ARPA), for flashlight-text")
    add("--only", default=",".join(PARTS), metavar="PART,...", help=", ".join(PARTS))
    add("--contexts", nargs="+", metavar="L,R", help="of the word error rates (all of the model's)")
    add("--context", default="70,6", metavar="L,R", help="of everything else (70,6)")
    add("--batches", type=int, nargs="+", default=[1, 8, 32, 128], metavar="N", help="streams (1 8 32 128)")
    add("--streams", type=int, nargs="+", default=[1, 32], metavar="N", help="streams of the pipeline (1 32)")
    add("--live-streams", type=int, nargs="+", default=[4, 8, 16], metavar="N", help="real-time streams (4 8 16)")
    add("--live-seconds", type=float, default=20, metavar="S", help="measured time of the latency (20)")
    add("--seconds", type=float, default=10, metavar="S", help="audio of each stream of the search (10)")
    add("--beam", type=float, default=10, metavar="NATS", help="of wfst and kaldi-decoder (10)")
    add("--repeats", type=int, default=5, metavar="N", help="counted rounds (5)")
    add("--device", default="cpu", help="cpu or cuda (cpu)")
    add("--kernels", default=AUTO, choices=KERNELS, help=f"of the part search ({AUTO})")
    add("--threads", type=int, default=1, metavar="N", help="CPU threads (1)")
    add("--json", type=Path, metavar="FILE", help="write every figure to this file, and the tables beside it")
    arguments = parser.parse_args(argv)
    arguments.only = arguments.only.split(",")
    if unknown := [name for name in arguments.only if name not in PARTS]:
        parser.error(f"--only: {unknown[0]!r} is not a part; parts: {', '.join(PARTS)}")
    return arguments


class Benchmark:
    """What the parts share."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        check_device(arguments.device, "--device")
        self.checkpoint = Checkpoint(arguments.model)
        self.context = self.checkpoint.config.encoder.select_context(parse_context(arguments.context))
        self.limits = WfstLimits(arguments.beam)
        self.graphs = {path: _with_fst(path) for path in arguments.graph}
        self.by_topology = {files.graph.topology: files for files in self.graphs.values()}
        self._load: Load | None = None

    def accuracy(self) -> list[dict]:
        """Word error rates at every context."""
        arguments, found = self.arguments, []
        selected = [parse_context(text) for text in arguments.contexts or ()]
        utterances = read_manifest(arguments.manifest)
        for context in selected or self.checkpoint.config.encoder.contexts:
            encoded = encode_all(self.checkpoint, context, utterances)
            measure = Accuracy(
                self.checkpoint, context, emissions(self.checkpoint, utterances, encoded), arguments.beam
            )
            rows = measure.rows(self.by_topology, arguments.word_lm, arguments.lm)
            check_parity(rows, len(utterances))
            found += [
                {**row._asdict(), "first": asdict(row.first), "other": asdict(row.other), "texts": len(utterances)}
                for row in rows
            ]
        return found

    def boosts(self) -> list[dict]:
        """Every utterance boosts its own words."""
        utterances = read_manifest(self.arguments.manifest)
        encoded = encode_all(self.checkpoint, self.context, utterances)
        at_context = emissions(self.checkpoint, utterances, encoded)
        rows = boost_rows(self.by_topology, at_context, self.arguments.beam, LM_WEIGHT)
        return [{**row._asdict(), "words": asdict(row.words)} for row in rows]

    def search(self) -> dict:
        """The search alone, what boosts add to it, and the memory of a stream."""
        arguments, rows, boosted = self.arguments, [], []
        for path, files in self.graphs.items():
            name = path.stem
            rows += search_rows(name, files, self.load, arguments.batches, self.limits, LM_WEIGHT, arguments.repeats)
            if files.graph.topology == "normal":
                boosted.append(boost_cost(name, files.graph, self.load, self.limits, LM_WEIGHT, 3 * arguments.repeats))
        return {
            "rows": [row._asdict() for row in rows],
            "boosts": [row._asdict() for row in boosted],
            "bytes_per_stream": WfstSizes().bytes_per_stream,
        }

    def pipeline(self) -> list[dict]:
        """Decoders side by side, from samples to text."""
        arguments = self.arguments
        decoders = pipeline_decoders(arguments.graph[0], arguments.lm)
        if self.checkpoint.config.transducer is None:
            del decoders[GREEDY]
        recordings = read_recordings(arguments.manifest)
        plan = Pipeline(
            arguments.model, self.context, decoders, recordings, arguments.repeats, arguments.device, self.host_clock
        )
        return [row._asdict() for streams in arguments.streams for row in pipeline_rows(plan, streams)]

    def latency(self) -> list[dict]:
        """Real-time streams through a server at several loads, beside the M/D/1 queue."""
        from loadtest.capacity import Trials

        arguments, found = self.arguments, []
        os.environ["PENSTOCK_GRAPH"] = str(arguments.graph[0].absolute())
        with tempfile.TemporaryDirectory() as folder:
            for decoder in (CTC, WFST):
                options = ["--recordings", str(arguments.manifest.absolute()), "--decoder", decoder]
                trials = Trials(
                    arguments.model, arguments.context, 1, None, "grpc", Path(folder) / decoder, options, progress
                )
                for streams in arguments.live_streams:
                    trials.run(streams, arguments.live_seconds)
                    (window,) = trials.reports[-1]["windows"]
                    window["models"] = {"decoder": window["models"].get("decoder", {})}
                    found.append({"decoder": decoder, "window": {name: window[name] for name in _OF_WINDOW}})
        return found

    @property
    def load(self) -> Load:
        """Streams cut from all recordings."""
        if self._load is None:
            arguments, rate = self.arguments, self.checkpoint.config.features.sample_rate_hz
            sound = np.concatenate([one.samples for one in read_recordings(arguments.manifest)])
            streams = cut_streams(sound, max(*arguments.batches, 64), round(arguments.seconds * rate))
            workload = bundle_workload("", self.checkpoint, self.context, streams, arguments.device, "")
            with torch.inference_mode():
                log_probs = CtcHead(self.checkpoint).log_probs(workload.encoded.cpu()).float()
            chunk, tokenizer = self.context.chunk_encoder_frames, Tokenizer(self.checkpoint.tokenizer_path)
            phrases = PhraseCache(tokenizer, _PHRASE_BYTES, arguments.device)
            clock, kernels = self.host_clock, arguments.kernels
            self._load = Load(log_probs, workload.stream_s, chunk, arguments.device, clock, phrases, kernels)
        return self._load

    @property
    def host_clock(self) -> Callable[[], float]:
        """CPU time, which other load on the machine changes less, where one thread takes all of it."""
        is_one = self.arguments.threads == 1 and self.arguments.device == "cpu"
        return time.thread_time if is_one else time.perf_counter


PARTS: dict[str, Callable[[Benchmark], object]] = {
    "accuracy": Benchmark.accuracy,
    "boosts": Benchmark.boosts,
    "search": Benchmark.search,
    "pipeline": Benchmark.pipeline,
    "latency": Benchmark.latency,
}


def _with_fst(path: Path) -> GraphFiles:
    graph, fst = read_graph(path), path.with_suffix(".fst")
    if missing_peer("kaldi_decoder"):
        progress(f"{path}: without kaldi-decoder, which is not installed")
        return GraphFiles(graph, None)
    if not fst.exists():
        progress(f"{path}: without kaldi-decoder: there is no {fst.name} (penstock graph build --openfst)")
        return GraphFiles(graph, None)
    return GraphFiles(graph, fst)


def to_markdown(document: dict) -> str:
    """The tables of the parts that are done."""
    tables = [RENDERERS[name](document[name]) for name in PARTS if name in document]
    return "\n\n".join([*tables, describe(document["environment"])])


if __name__ == "__main__":
    sys.exit(main())
