"""Streams of the decoder `wfst` through the decoder stage: chunks, batches, boosts, words, and what is rejected."""

import contextlib
import itertools
import math
from pathlib import Path

import pytest
import torch

from penstock.errors import GraphError, StreamError
from penstock.model.bundle import Checkpoint
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import offer_decoders
from penstock.pipeline.options.stream_options import ResolvedOptions, parse_stream_options
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stream_decoders import builder as decoder_builder
from penstock.pipeline.stream_decoders.wfst import WordWriter
from penstock.scoring.wfst.graph_file import write_graph
from penstock.scoring.wfst.words import read_words
from tests.helpers.decoding_graphs import Arc, make_graph, word_loop, write_word_loop
from tests.helpers.random_models import frames_of, random_ctc_checkpoint, silent_frame
from tests.helpers.stage_requests import DecoderRequest, decode

WORDS = ("a", "be", "bed", "bad", "dad", "bead")
SLOTS = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return random_ctc_checkpoint(tmp_path_factory.mktemp("ctc"), 3)


@pytest.fixture(scope="module")
def graph(checkpoint, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("graph") / "words.safetensors"
    return str(write_word_loop(path, checkpoint.tokenizer_path, WORDS))


class Streams:
    """A decoder stage and its streams' encoder frames."""

    def __init__(self, checkpoint: Checkpoint, graph: str, **settings):
        self.decoding = DecodingConfig(graph=graph, wfst_max_active=64, wfst_beam=20.0, **settings)
        self.checkpoint = checkpoint
        self.stage = DecoderStage(checkpoint, SLOTS, SlotLedger(SLOTS), decoding=self.decoding)
        self.tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self.words = read_words(graph)
        self._generation = 0

    def options(self, **given) -> ResolvedOptions:
        offer = offer_decoders(self.checkpoint.config, self.decoding)
        return parse_stream_options({"decoder": "wfst", **given}, self.decoding, self.tokenizer, offer, self.words)

    def decode(self, rows: dict[int, torch.Tensor], options: dict[int, ResolvedOptions], chunk: int) -> dict[int, list]:
        """The results of streams by slot, all in one batch, chunk after chunk."""
        self._generation += 1
        results: dict[int, list[StreamResult]] = {slot: [] for slot in rows}
        longest = max(map(len, rows.values()))
        for first in range(0, longest, chunk):
            requests = [
                DecoderRequest(
                    Lease(slot, self._generation),
                    frames[first : first + chunk],
                    0,
                    is_start=first == 0,
                    is_end=first + chunk >= len(frames),
                    options=options[slot],
                )
                for slot, frames in rows.items()
                if first < len(frames)
            ]
            for request, answer in zip(requests, decode(self.stage, requests), strict=True):
                assert isinstance(answer, StreamResult), answer
                results[request.lease.slot].append(answer)
        return results


@pytest.fixture(scope="module")
def streams(checkpoint, graph) -> Streams:
    return Streams(checkpoint, graph)


def segments(results: list[StreamResult]) -> list[tuple]:
    """(text, alternatives, tokens) of each segment."""
    entries = [entry for result in results for entry in result.entries]
    finals = [entry for entry in entries if entry.is_final]
    assert [final.segment for final in finals] == list(range(len(finals)))
    assert entries[-1].is_final
    return [
        (
            final.text,
            [alternative.text for alternative in final.alternatives],
            [token[:3] for entry in entries if entry.segment == final.segment for token in entry.tokens],
        )
        for final in finals
    ]


def outcome(results: list[StreamResult]) -> tuple:
    tokens = [token for result in results for token in result.tokens]
    words = [word for result in results for word in result.words]
    assert " ".join(word.text for word in words) == results[-1].text
    assert [result.is_final for result in results] == [False] * (len(results) - 1) + [True]
    return results[-1].text, [token[:3] for token in tokens], [word[:3] for word in words]


def test_texts_are_words_of_the_graph_and_chunks_do_not_matter(streams, checkpoint):
    frames = frames_of(checkpoint, 1, 40)
    whole = outcome(streams.decode({0: frames}, {0: streams.options()}, 40)[0])
    assert set(whole[0].split()) <= set(WORDS) and len(whole[0].split()) > 3
    for chunk in (1, 3, 7):
        assert outcome(streams.decode({1: frames}, {1: streams.options()}, chunk)[1]) == whole


def test_a_segment_ends_in_silence_and_the_graph_starts_anew(streams, checkpoint):
    """Frames do not depend on each other here, so each segment is a stream of its frames alone."""
    chunk = checkpoint.config.encoder.select_context(None).chunk_encoder_frames
    silence = silent_frame(checkpoint).expand(8 * chunk, -1)
    frames = torch.cat([frames_of(checkpoint, 1, 8 * chunk), silence, frames_of(checkpoint, 2, 8 * chunk)])
    options = streams.options(endpoint_silence_ms=400, n_best=2)
    whole = segments(streams.decode({0: frames}, {0: options}, len(frames))[0])
    assert len(whole) == 2 and all(text for text, *_ in whole)
    for chunks in (1, 2, 5):
        # Beside a stream without endpoints.
        found = streams.decode({0: frames, 1: frames}, {0: options, 1: streams.options()}, chunks * chunk)
        assert segments(found[0]) == whole
        assert len(segments(found[1])) == 1

    def alone(part: torch.Tensor) -> list[tuple]:
        return segments(streams.decode({2: part}, {2: streams.options(n_best=2)}, len(part))[2])

    borders = range(9 * chunk, 17 * chunk, chunk)
    assert whole in [alone(frames[:border]) + alone(frames[border:]) for border in borders]


def test_a_batch_with_boosts_equals_streams_alone(streams, checkpoint):
    rows = {slot: frames_of(checkpoint, slot, 20 + slot) for slot in range(SLOTS)}
    options = {
        0: streams.options(),
        1: streams.options(boosted_phrases=["bead", ["bad", 1.0]]),
        2: streams.options(boosted_phrases=["dad be", "a"], boost=3.0),
        3: streams.options(lm_weight=1.5),
    }
    together = streams.decode(rows, options, 5)
    for slot in rows:
        other = (slot + 1) % SLOTS
        alone = streams.decode({other: rows[slot]}, {other: options[slot]}, 5)[other]
        assert outcome(alone) == outcome(together[slot])
    plain = streams.decode(rows, dict.fromkeys(rows, streams.options()), 5)
    for slot, words in ((1, {"bead", "bad"}), (2, {"dad", "be", "a"})):
        texts = [results[slot][-1].text.split() for results in (plain, together)]
        counts = [sum(word in words for word in text) for text in texts]
        assert counts[1] > counts[0]


def test_alternatives_have_different_words_and_come_best_first(streams, checkpoint):
    options = streams.options(n_best=5)
    results = streams.decode({0: frames_of(checkpoint, 1, 40)}, {0: options}, 7)[0]
    assert not any(result.alternatives for result in results[:-1])
    texts = [alternative.text for alternative in results[-1].alternatives]
    assert texts[0] == results[-1].text and 2 <= len(texts) == len(set(texts)) <= 5
    scores = [alternative.score for alternative in results[-1].alternatives]
    assert scores == sorted(scores, reverse=True)
    for alternative in results[-1].alternatives:
        assert " ".join(word.text for word in alternative.words) == alternative.text
        # The graph of equally likely words, at a third: log 6 for each.
        graph_score = len(alternative.words) * math.log(len(WORDS)) / 3
        assert alternative.acoustic_score - graph_score == pytest.approx(alternative.score, abs=1e-3)


def test_a_lexicon_writes_words_that_tokens_do_not(streams, checkpoint, tmp_path):
    """The same graph with other names of the words: same tokens and times, other texts."""
    names = {f"{word.upper()}." if word != "a" else "a": word for word in WORDS}
    path = write_word_loop(tmp_path / "named.safetensors", checkpoint.tokenizer_path, names)
    named = Streams(checkpoint, str(path))
    frames = frames_of(checkpoint, 1, 40)
    expected = streams.decode({0: frames}, {0: streams.options(n_best=3)}, 40)[0]
    written = dict(zip(WORDS, names, strict=True))
    for chunk in (1, 7, 40):
        results = named.decode({1: frames}, {1: named.options(n_best=3)}, chunk)[1]
        text, tokens, words = outcome(results)
        assert (text, tokens) == (
            " ".join(written[word] for word in outcome(expected)[0].split()),
            outcome(expected)[1],
        )
        assert [word[2] for word in words] == [word[2] for word in outcome(expected)[2]]
        texts = [alternative.text for alternative in expected[-1].alternatives]
        renamed = [" ".join(written[word] for word in text.split()) for text in texts]
        assert [alternative.text for alternative in results[-1].alternatives] == renamed


def test_narrowed_frames_are_counted_and_logged_and_chunks_do_not_matter(checkpoint, tmp_path, caplog):
    words = ["".join(letters) for letters in itertools.product("abcde", repeat=4)][:450]
    path = write_word_loop(tmp_path / "many.safetensors", checkpoint.tokenizer_path, words)
    frames, found = frames_of(checkpoint, 1, 20), []
    for chunk in (3, 20):
        streams = Streams(checkpoint, str(path))
        found.append((outcome(streams.decode({0: frames}, {0: streams.options()}, chunk)[0]), streams.stage.truncation))
    assert found[0] == found[1]
    narrowed = found[0][1].narrowed_frames
    assert 0 < narrowed <= 40 and sum(found[0][1]) == narrowed
    assert f"a segment's wfst beam was truncated: {narrowed} narrowed frames" in caplog.text


def test_words_and_phrases_are_those_of_the_graph(streams, checkpoint):
    with pytest.raises(
        StreamError, match=r"PHRASES_INVALID: .*'fad', 'ace' not in the decoding graph; accepted: words of"
    ):
        streams.options(boosted_phrases=["bad", "fad ace"])
    with pytest.raises(StreamError, match="'f', 'g', 'h', 'i', 'j' and others not in"):
        streams.options(boosted_phrases=list("fghijk"))
    left_out = streams.options(boosted_phrases=["bad", "fad ace", "BEAD"], unknown_phrases="ignore")
    assert {*left_out.phrases} == {*streams.options(boosted_phrases=["bad", "bead"]).phrases}


def test_a_compact_graph_takes_no_boosts_above_zero(checkpoint, tmp_path):
    path = write_word_loop(tmp_path / "compact.safetensors", checkpoint.tokenizer_path, WORDS, "compact")
    streams = Streams(checkpoint, str(path))
    with pytest.raises(
        StreamError, match="'bad' has boost 2, and the graph's topology is compact; accepted: boosts up"
    ):
        streams.options(boosted_phrases=["bad"])
    assert streams.options(boosted_phrases=["bad"], boost=-1.0).phrases


def test_a_graph_of_another_model_is_rejected(checkpoint, tmp_path):
    path, graph = tmp_path / "other.safetensors", word_loop(Tokenizer(checkpoint.tokenizer_path), WORDS)
    write_graph(graph, path)
    with pytest.raises(GraphError, match="the tokenizer with SHA-256"):
        DecoderStage(checkpoint, 1, SlotLedger(1), decoding=DecodingConfig(graph=str(path)))


def test_a_graph_above_the_available_memory_is_rejected(checkpoint, graph, monkeypatch):
    """Four times the file: as it is read, and as the search needs it."""
    size = Path(graph).stat().st_size
    for available, is_enough in ((4 * size, True), (4 * size - 1, False)):
        monkeypatch.setattr(decoder_builder, "available_memory_bytes", lambda available=available: available)
        with contextlib.nullcontext() if is_enough else pytest.raises(GraphError, match=r"the graph takes .* are free"):
            Streams(checkpoint, graph)


def test_warming_up_counts_nothing(checkpoint, graph):
    stage = Streams(checkpoint, graph).stage
    stage.warm_up(SLOTS)
    assert not any(stage.truncation)


SPELLINGS = {"A": [[0], [0, 1]], "B": [[1, 2], [2]], "C": [[3]]}
A, B, C = 1, 2, 3


@pytest.fixture
def writer() -> WordWriter:
    return WordWriter(make_graph([Arc(0, 4, 0, 0.0, 0)], {0: 0.0}, 4, SPELLINGS))


@pytest.mark.parametrize(
    ("tokens", "words", "texts", "known"),
    [
        ([], [], [], 0),
        ([0], [], [""], 0),
        ([0, 1], [A], [" A", ""], 0),
        ([0, 3], [A, C], [" A", " C"], 1),
        ([0, 1, 2, 3], [A, B, C], [" A", "", " B", " C"], 3),
        ([0, 1, 2, 1, 2, 3], [A, B, B, C], [" A", "", " B", " B", "", " C"], 5),
        ([0, 1], [A, B], [" A", " B"], 1),
        ([3, 3, 0], [C, C], [" C", " C", ""], 1),
    ],
)
def test_texts_of_tokens(writer, tokens, words, texts, known):
    assert writer.texts(tokens, words, is_final=False) == (texts, known)
    assert writer.texts(tokens, words, is_final=True) == (texts, len(tokens))


def test_a_path_of_thousands_of_words(writer):
    assert writer.texts([3] * 3000, [C] * 3000, is_final=True) == ([" C"] * 3000, 3000)


def test_spellings_that_begin_others_take_no_time():
    writer = WordWriter(make_graph([Arc(0, 4, 0, 0.0, 0)], {0: 0.0}, 4, {"A": [[0], [0, 0]], "B": [[1]]}))
    assert writer.texts([0] * 90, [A] * 90, is_final=True) == ([" A"] * 90, 90)
    assert writer.texts([0] * 90 + [2], [A] * 60 + [B], is_final=True)[0].count(" A") == 60, "no spellings fit"
