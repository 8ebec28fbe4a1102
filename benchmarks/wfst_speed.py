"""Speed of the graph benchmark: the search beside kaldi-decoder, the cost of boosts, decoders in the pipeline."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.measure import paired_ratio, time_interleaved
from benchmarks.recognizer import Penstock, Recording, Workload
from benchmarks.results import progress
from benchmarks.wfst_accuracy import GraphFiles, word_boosts
from benchmarks.wfst_systems import GraphSearch, KaldiDecoder
from penstock.decoding.wfst.sizes import WfstLimits
from penstock.kernels.capability import AUTO
from penstock.model.config import AttentionContext
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.scoring.boosting.cache import PhraseCache
from penstock.scoring.boosting.tokenization import TokenPhrase, TokenPhrases
from penstock.scoring.wfst.graph_file import DecodingGraph
from penstock_client.options import CTC, CTC_BEAM, GREEDY, WFST

WARM_UP_ROUNDS = 1
MIN_STREAMS_PER_ROUND = 4
"""Streams that a round decodes at least, a batch after the other."""
BOOSTED_STREAMS, BOOSTED_WORDS = 64, 100
_FAINT_BOOST = 1e-4
"""Leaves the tokens as they are without boosts, so that the same work is compared."""


class SearchRow(NamedTuple):
    """The search alone, from log-probabilities to words, beside kaldi-decoder on one thread."""

    graph: str
    streams: int
    chunk_encoder_frames: int | None
    """None: whole streams at once."""
    rtfx: float
    kaldi_rtfx: float | None
    to_kaldi: float | None
    """Speed relative to kaldi-decoder's in the same round; None without it."""
    equal: int | None
    """Streams with the same words as kaldi-decoder's."""
    rounds_s: tuple[float, ...]


class Load(NamedTuple):
    """Streams of equal length."""

    log_probs: torch.Tensor
    """[B, T, V + 1] float32"""
    stream_s: float
    chunk_encoder_frames: int
    device: str = "cpu"
    host_clock: Callable[[], float] = time.thread_time
    """CPU time, which other load on the machine changes less."""
    phrases: PhraseCache | None = None
    """Memory of phrase lists; None: their cost is not measured."""
    kernels: str = AUTO
    """Of the search."""


def search_rows(
    name: str, files: GraphFiles, load: Load, batches: Sequence[int], limits: WfstLimits, lm_weight: float, repeats: int
) -> list[SearchRow]:
    """Every batch size, whole and in chunks; both systems take turns."""
    peer = None if files.fst is None else KaldiDecoder(files.fst, lm_weight, limits.beam)
    chunk, rows = load.chunk_encoder_frames, []
    for streams in batches:
        search = GraphSearch(files.graph, streams, lm_weight, limits, load.device, chunk, kernels=load.kernels)
        count = max(streams, MIN_STREAMS_PER_ROUND)
        log_probs = load.log_probs[:count]
        for span in (None, chunk):
            tasks: dict = {WFST: _in_batches(search, log_probs.to(load.device), streams, span)}
            if peer is not None:
                tasks["peer"] = _of_peer(peer, peer.scaled(log_probs), span)
            timed = time_interleaved(tasks, repeats, WARM_UP_ROUNDS, load.device, load.host_clock)
            mine, audio_s = timed[WFST], count * load.stream_s
            theirs = timed.get("peer")
            rows.append(
                SearchRow(
                    name,
                    streams,
                    span,
                    audio_s / mine.seconds.median,
                    theirs and audio_s / theirs.seconds.median,
                    theirs and paired_ratio(theirs.rounds_s, mine.rounds_s),
                    theirs and sum(map(list.__eq__, mine.result, theirs.result)),
                    mine.rounds_s,
                )
            )
            progress(f"  {name}, {streams} streams, chunks of {span}: RTFx {rows[-1].rtfx:.0f}")
    return rows


def _in_batches(search: GraphSearch, log_probs: torch.Tensor, streams: int, span: int | None) -> Callable[[], list]:
    def decode() -> list[list[int]]:
        parts = [search.decode(part, chunk_encoder_frames=span) for part in log_probs.split(streams)]
        return [words for part in parts for words in part]

    return decode


def _of_peer(peer: KaldiDecoder, scaled: list[np.ndarray], span: int | None) -> Callable[[], list]:
    return lambda: peer.decode(scaled, span)


class BoostCost(NamedTuple):
    """A batch in which every stream boosts a list of its own words, beside one without boosts."""

    graph: str
    streams: int
    words: int
    """Per list."""
    ratio: float
    """Time with to without, paired by rounds."""
    phrases_ratio: float | None
    """The same with as many phrases of two words per list; None: not measured."""


def boost_cost(
    name: str, graph: DecodingGraph, load: Load, limits: WfstLimits, lm_weight: float, repeats: int
) -> BoostCost:
    """Lists of random words of the graph, and of pairs of them, in chunks."""
    streams = min(BOOSTED_STREAMS, len(load.log_probs))
    random, known = np.random.default_rng(0), graph.words[1:]
    count = min(BOOSTED_WORDS, len(known))
    lists = [random.choice(known, count, replace=False).tolist() for _ in range(streams)]
    table = _FAINT_BOOST * word_boosts(graph, lists)
    boosts: dict = {"plain": {}, "words": {"word_boosts": table}}
    if load.phrases is not None:
        starts = [load.phrases.acquire(_pairs(graph, words)) for words in lists]
        boosts["phrases"] = {"word_boosts": 0 * table, "phrases": (load.phrases.automaton, starts)}
    chunk, log_probs = load.chunk_encoder_frames, load.log_probs[:streams].to(load.device)
    searches = {
        key: GraphSearch(graph, streams, lm_weight, limits, load.device, chunk, **chosen, kernels=load.kernels)
        for key, chosen in boosts.items()
    }
    tasks: dict = {key: _in_batches(search, log_probs, streams, chunk) for key, search in searches.items()}
    timed = time_interleaved(tasks, repeats, WARM_UP_ROUNDS, load.device, load.host_clock)
    ratios = {key: paired_ratio(one.rounds_s, timed["plain"].rounds_s) for key, one in timed.items()}
    return BoostCost(name, streams, count, ratios["words"], ratios.get("phrases"))


def _pairs(graph: DecodingGraph, words: Sequence[str]) -> TokenPhrases:
    """Each word with the next one, the last with the first, as a list of phrases."""
    pieces = [graph.spellings(graph.words.index(word))[0] for word in words]
    pairs = zip(pieces, pieces[1:] + pieces[:1], strict=True)
    return tuple(TokenPhrase((*first, *second), _FAINT_BOOST) for first, second in pairs)


class PipelineRow(NamedTuple):
    """The recognizer with one decoder, samples to text."""

    decoder: str
    streams: int
    rtfx: float
    decoder_share: float
    """Of the recognizer's time."""
    to_ctc: float
    """Time of all relative to that with `ctc`, paired by rounds."""
    word_errors: int
    words: int


class Pipeline(NamedTuple):
    """What the recognizer is measured with."""

    model: Path
    context: AttentionContext
    decoders: Mapping[str, DecodingConfig]
    """Settings of each decoder, by the name in the table; it begins with the decoder's."""
    recordings: list[Recording]
    repeats: int
    device: str = "cpu"
    host_clock: Callable[[], float] = time.thread_time


def pipeline_decoders(graph: Path, lm: Path | None) -> dict[str, DecodingConfig]:
    """Decoders side by side."""
    found = {GREEDY: DecodingConfig(), CTC: DecodingConfig(), f"{CTC_BEAM}, 16": DecodingConfig(beam_size=16)}
    if lm is not None:
        found[f"{CTC_BEAM}, 16, LM of pieces"] = DecodingConfig(beam_size=16, lm=str(lm), lm_weight=0.3)
    return found | {WFST: DecodingConfig(graph=str(graph))}


def pipeline_rows(pipeline: Pipeline, streams: int) -> list[PipelineRow]:
    """All decoders take turns; streams play one recording after another."""
    recordings = pipeline.recordings
    if streams == 1:
        recordings = recordings[: max(1, len(recordings) // 4)]
    workload = Workload(recordings, streams, 1) if streams == 1 else _short_workload(recordings, streams)
    systems = {
        name: Penstock(pipeline.model, pipeline.context, streams, pipeline.device, decoding, {"decoder": _first(name)})
        for name, decoding in pipeline.decoders.items()
    }
    for system in systems.values():
        system.clock = pipeline.host_clock
        system.run(workload.utterances[:1], [[0]])
        system.stage_s.update(dict.fromkeys(system.stage_s, 0.0))
    tasks: dict = {name: _play(system, workload) for name, system in systems.items()}
    timed = time_interleaved(tasks, pipeline.repeats, 0, pipeline.device, pipeline.host_clock)
    rows = []
    for name, timing in timed.items():
        words = workload.word_errors(timing.result)
        stage_s = systems[name].stage_s
        share = stage_s["decoder"] / sum(stage_s.values())
        to_ctc = paired_ratio(timing.rounds_s, timed[CTC].rounds_s)
        rtfx = workload.audio_s / timing.seconds.median
        rows.append(PipelineRow(name, streams, rtfx, share, to_ctc, words.edits, words.reference_units))
        progress(f"  {name}, {streams} streams: RTFx {rtfx:.1f}, decoder {100 * share:.0f} %")
    return rows


def _short_workload(recordings: list[Recording], streams: int) -> Workload:
    """Every stream plays a few recordings."""
    return Workload(recordings[:: max(1, len(recordings) // 6)], streams, 1)


def _play(system: Penstock, workload: Workload) -> Callable[[], dict[int, str]]:
    return lambda: system.run(workload.utterances, workload.playlists)


def _first(name: str) -> str:
    return name.partition(",")[0]
