"""Galvez, Kaldewey, "GPU-accelerated WFST beam search decoder for CTC-based speech recognition": tables 1, 2 and 4."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.baselines import texts_of
from benchmarks.papers.inputs import BATCH, MODEL, PieceLm, Speech, texts
from benchmarks.papers.runner import (
    Entry,
    Row,
    Settings,
    Streams,
    first,
    lines_of,
    measured,
    speed_ups,
    total_rtfx,
    wer_percent,
)
from benchmarks.results import progress
from loadtest.processes import MODELS
from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import sha256_of
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.reporting import markdown_table, three_digits
from penstock.scoring.ngram.estimation.build import build_lm
from penstock.scoring.ngram.estimation.text import WordText
from penstock.scoring.wfst.building.compile import compile_graph
from penstock.scoring.wfst.building.lexicon import build_lexicon, lm_words
from penstock.scoring.wfst.graph_file import write_graph
from penstock.transcription.offline import OfflineRecognizer

COMPACT, NORMAL = TOPOLOGIES = ("compact", "normal")
GREEDY, BEAM = "ctc", "ctc_beam"
_BEAM_SIZE = 16
_BEAM_OPTIONS = {"decoder": BEAM, "beam_size": _BEAM_SIZE, "lm_weight": 0.3}
LEFT_S, CHUNK_S, RIGHT_S = 10.0, 0.4, 0.24
"""Parts of a live window; the paper has 400 and 200 ms, and a frame of the model has 80."""
_PUBLISHED = {
    "Small": ((3.28, 646), (3.17, 4320), (3.56, 4464)),
    "Medium": ((2.59, 549), (2.65, 3727), (3.20, 3721)),
    "Large": ((2.31, 488), (2.21, 2261), (2.74, 2322)),
}
"""WER % and RTFx of Flashlight, the compact and the normal topology, on test-clean."""
_LIVE = {"compact, A100": (30.1, 24.4, 54.5, 78, 256), "Flashlight, 256 streams": (53.7, 376.2, 430.0, 541.5, 235.4)}


def rows(settings: Settings) -> Iterator[Row]:
    """Whole recordings, then live streams; both need `Settings.train`."""
    if settings.train is None:
        yield {"decoder": "wfst", "unavailable": "a graph needs --train"}
        return
    graphs = {topology: build_graph(settings, settings.train, topology) for topology in TOPOLOGIES}
    lm = PieceLm(settings, settings.train).write()
    yield from _whole(settings, graphs, lm)
    for decoder, options in (("wfst", ["--decoder", "wfst"]), (BEAM, _flags(_BEAM_OPTIONS))):
        yield _live(settings, decoder, options, graphs[COMPACT], lm)


def build_graph(settings: Settings, train: Path, topology: str) -> Path:
    """The graph of a trigram model of the words of the texts."""
    path, text = settings.work / f"{topology}.safetensors", settings.work / "words.txt"
    text.write_text("\n".join(texts(train)) + "\n", encoding="utf-8")
    words = WordText(None)
    sentences = list(words.read([str(text)]))
    arpa = build_lm(sentences, words.names, 3).arpa
    tokenizer_path = Checkpoint(MODEL).tokenizer_path
    tokenizer = Tokenizer(tokenizer_path)
    known = lm_words(arpa.words, tokenizer)
    lexicon = build_lexicon({word: [()] for word in known}, known, tokenizer)
    compiled = compile_graph(arpa, lexicon, topology, tokenizer.size, sha256_of(tokenizer_path))
    write_graph(compiled.graph, path)
    return path


def _whole(settings: Settings, graphs: dict[str, Path], lm: Path) -> list[Row]:
    """From samples to text."""
    speech = Speech(settings)
    recognizers = {
        topology: OfflineRecognizer(
            MODEL, BATCH, settings.device, DecodingConfig(graph=str(path), lm=str(lm), beam_size=_BEAM_SIZE)
        )
        for topology, path in graphs.items()
    }
    cases: list[tuple[str, dict[str, object]]] = [(topology, {"decoder": "wfst"}) for topology in TOPOLOGIES]
    cases += [(NORMAL, {"decoder": GREEDY}), (NORMAL, _BEAM_OPTIONS)]
    entries = []
    for topology, options in cases:
        decoder = options["decoder"]
        case = {"decoder": f"wfst {topology}" if decoder == "wfst" else decoder, "lm": decoder != GREEDY}
        entries.append(Entry(case, partial(recognizers[topology].transcribe, speech.audio, options), texts_of))
    return measured(entries, Streams(speech.audio_s, None, speech.references), settings.rounds, settings.device)


def _flags(options: dict[str, object]) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def _live(settings: Settings, decoder: str, options: list[str], graph: Path, lm: Path) -> Row:
    """A load test in real time on a server of its own."""
    out = settings.work / f"live-{decoder}"
    row: Row = {"decoder": f"live {decoder}", "streams": settings.live_streams, "minutes": settings.live_minutes}
    command = [
        sys.executable, "-m", "loadtest", "run", "--model", str(MODEL), "--out", str(out.absolute()),
        "--streams", str(settings.live_streams), "--minutes", str(settings.live_minutes), "--recordings",
        str(settings.manifest.absolute()), "--window", f"{LEFT_S:g},{CHUNK_S:g},{RIGHT_S:g}", "--no-align",
        "--chunk-ms", f"{1000 * CHUNK_S:g}", "--loglevel", "WARNING", *options,
    ]  # fmt: skip
    found = {"GRAPH": graph.absolute(), "LM": lm.absolute(), "BEAM_SIZE": _BEAM_SIZE, "DEVICE": settings.device}
    environment = os.environ | {f"PENSTOCK_{name}": str(value) for name, value in found.items()}
    progress(f"{row}")
    report = out / "loadtest.json"
    report.unlink(missing_ok=True)
    done = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
    if not report.exists():
        return row | {"unavailable": f"the load test ended with status {done.returncode}"}
    (window,) = json.loads(report.read_text(encoding="utf-8"))["windows"]
    kept = ("chunks", "late_chunks", "chunk_latency_ms", "rtfx", "passed", "reasons")
    row |= {name: window[name] for name in kept} | {"wer": window["words"]["wer"], "stages": {}}
    times = ("compute_ms", "queue_ms", "total_ms", "predicted_queue_ms", "batch")
    for stage in MODELS:
        if stage in window["models"]:
            row["stages"][stage] = {name: window["models"][stage][name] for name in times}
    return row


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown, with the paper's figures."""
    beam, compact, normal, greedy = (
        first(rows, decoder=name) for name in (BEAM, "wfst compact", "wfst normal", GREEDY)
    )
    figures = ("WER %", "RTFx")
    lines: list[list[object]] = []
    for name, found in _PUBLISHED.items():
        published = [f"{wer:.2f}, {rtfx}" for wer, rtfx in found]
        lines += lines_of(f"paper: {name}", figures, [*published, "-", f"{found[1][1] / found[0][1]:.2f}"])
    cells = [f"{wer_percent(row):.2f}, {three_digits(total_rtfx(row))}" if row else "-" for row in
             (beam, compact, normal, greedy)]  # fmt: skip
    faster = f"{speed_ups(compact, beam)[0]:.2f}" if compact and beam else "-"
    lines += lines_of("here", figures, [*cells, faster])
    head = ["", "Flashlight; here ctc_beam", "wfst, compact", "wfst, normal", "greedy", "compact / first"]
    yield (
        "Tables 1 and 2: WER, and RTFx from samples to text; the last column is the ratio of RTFx.\n\n"
        f"{markdown_table(head, lines, left=1)}"
    )
    lines = [[f"paper: {name}", *published, "-", "-"] for name, published in _LIVE.items()]
    for row in rows:
        if "stages" in row:
            sums = [_sum(row["stages"], name) for name in ("compute_ms", "queue_ms", "total_ms", "predicted_queue_ms")]
            lines.append([f"here: {row['decoder']}, {row['streams']} streams", *sums[:3],
                          row["chunk_latency_ms"]["p99"], row["rtfx"], sums[3],
                          f"{row['late_chunks']} of {row['chunks']}"])  # fmt: skip
    head = ["", "compute ms", "queue ms", "total ms", "p99 ms", "RTFx", "queue by M/D/1, ms", "late"]
    yield f"Table 4: live streams.\n\n{markdown_table(head, lines, left=1)}"
    for row in rows:
        if row.get("reasons"):
            yield f"The load test of {row['decoder']} did not pass: {'; '.join(row['reasons'])}."


def _sum(stages: dict[str, dict[str, float | None]], name: str) -> float | str:
    """The sum over all stages; a dash where one has no value: M/D/1 has no queue for more work than can be done."""
    found = [stage[name] for stage in stages.values()]
    return sum(one for one in found if one is not None) if None not in found else "-"
