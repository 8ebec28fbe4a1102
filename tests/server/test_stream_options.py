"""Decoder, language, language models, weights and phrases per stream, through a real server over both protocols."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.frontend.audio_file import read_audio
from penstock.model.config import FACTORIZED, IlmPair
from penstock.model.nemo.importer import import_nemo
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.recognizer import StreamingRecognizer
from penstock_client import Client, StreamError, StreamOptions
from tests.helpers.decoding_graphs import write_text_lm, write_word_loop
from tests.helpers.golden import GOLDEN, golden_case, golden_utterances
from tests.helpers.nemo_files import write_ctc_nemo
from tests.helpers.random_models import random_checkpoint, with_end_tokens
from trials.server.running import CONTEXT, RunningServer, running_server

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("uncompiled")]

MODELS = Path(__file__).parents[2] / "models"
UTTERANCES = [utterance.path for utterance in golden_utterances()]
REQUEST_SAMPLES = 4007
SENTENCES = ["rubout g m e f three nine", "enter six five", "erase c q q f seven", "go", "one two three four", "yes"]


class Case(NamedTuple):
    """A model, and what its streams choose."""

    model: Path
    context: tuple[int, int]
    decoding: DecodingConfig
    choices: Sequence[StreamOptions]
    utterances: list[Path]
    unlike: int
    """The least number of choices whose results of the first utterance differ."""
    languages: tuple[str, ...] = ()
    """The languages that the server offers, its default last."""


def transducer(name: str) -> Callable[[Path], Case]:
    """A bundled model with a language model over its tokens, and a graph of the sentences' words, each as likely."""

    def make(folder: Path) -> Case:
        model = MODELS / name
        words = dict.fromkeys(word for sentence in SENTENCES for word in sentence.split())
        lm = write_text_lm(folder / "a.arpa", model / "tokenizer.model", SENTENCES * 4, order=3)
        graph = write_word_loop(folder / "a.safetensors", model / "tokenizer.model", list(words))
        choices = (
            StreamOptions(),
            StreamOptions(decoder="alsd", n_best=3),
            StreamOptions(decoder="aes", beam_size=2, lm_weight=0.4),
            StreamOptions(lm_weight=0.5, boosted_phrases=["rubout", ("go", -2.0)], boost=1.5),
            StreamOptions(decoder="alsd", lm_weight=0.3, boosted_phrases=["erase"], n_best=1),
            StreamOptions(decoder="ctc"),
            StreamOptions(decoder="ctc_beam", lm_weight=0.3, boosted_phrases=["erase"], n_best=2),
            StreamOptions(decoder="wfst", n_best=3),
            StreamOptions(decoder="wfst", lm_weight=0.5, boosted_phrases=["rubout", ("go", -2.0)], boost=1.5),
            StreamOptions(decoder="wfst", boosted_phrases=["six five", "one two"]),
        )
        return Case(model, CONTEXT, DecodingConfig(lm=str(lm), graph=str(graph)), choices, UTTERANCES[:2], 2)

    return make


def ctc(folder: Path) -> Case:
    """A model that has only a CTC head, from a `.nemo` of EncDecCTCModelBPE. The first decoder is its default."""
    model = import_nemo(write_ctc_nemo(folder / "ctc.nemo"), folder / "bundle").directory
    graph = write_word_loop(folder / "a.safetensors", model / "tokenizer.model", ("a", "be", "bed", "bad", "dad"))
    choices = (
        StreamOptions(),
        StreamOptions(decoder="ctc_beam", n_best=2),
        StreamOptions(decoder="wfst", n_best=4),
        StreamOptions(decoder="wfst", boosted_phrases=["bad", "a bed"]),
    )
    context = golden_case("rnnt_hybrid").contexts[0]
    return Case(model, context, DecodingConfig(graph=str(graph)), choices, UTTERANCES[4:5], 3)


def factorized(folder: Path) -> Case:
    """Random weights; beams weigh the internal language model by default, greedy search does not."""
    model = random_checkpoint(folder, 8, kind=FACTORIZED, blank_rate=0.6, beam_pair=IlmPair(0.6, 0.4)).directory
    choices = (
        StreamOptions(),
        StreamOptions(ilm_alpha=0.6, ilm_beta=0.6),
        StreamOptions(decoder="alsd", n_best=3),
        StreamOptions(decoder="alsd", n_best=3, ilm_alpha=1, ilm_beta=0),
        StreamOptions(decoder="alsd", n_best=2, ilm_beta=1.5),
        StreamOptions(decoder="aes", ilm_alpha=0, ilm_beta=0.8),
    )
    return Case(model, (4, 1), DecodingConfig(), choices, UTTERANCES[:2], len(choices))


def end_tokens(folder: Path) -> Case:
    """A model that writes end tokens, which end segments unless a stream chooses otherwise."""
    model = with_end_tokens(MODELS / "an4-rnnt-hybrid", folder, (" four", " eight")).directory
    choices = (StreamOptions(), StreamOptions(endpoint_tokens="off"), StreamOptions(decoder="alsd", n_best=2))
    recognizer = StreamingRecognizer(model, CONTEXT)
    segments = [len(_here(recognizer, UTTERANCES[1], choice)[0]) for choice in choices]
    assert segments[0] > 2 and segments[1] == 1
    return Case(model, CONTEXT, DecodingConfig(), choices, UTTERANCES[1:3], 3)


def languages(folder: Path) -> Case:
    """A model with language prompts; random weights."""
    model = import_nemo(GOLDEN / "prompt_hybrid.nemo", folder / "bundle").directory
    named = [(decoder, language) for decoder in ("greedy", "alsd", "aes") for language in (None, "en-US", "de-DE")]
    choices = [StreamOptions(decoder=decoder, language=language) for decoder, language in named]
    return Case(model, (56, 3), DecodingConfig(), choices, UTTERANCES[:2], 3, ("en-US", "en", "de-DE", "no", "auto"))


AT_NIGHT = {
    "tdt": transducer("an4-tdt-hybrid"), "ctc": ctc, "factorized": factorized, "end_tokens": end_tokens,
    "languages": languages,
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(transducer("an4-rnnt-hybrid"), id="rnnt"),
        *(pytest.param(make, id=name, marks=pytest.mark.nightly) for name, make in AT_NIGHT.items()),
    ],
)
def case(request, tmp_path_factory) -> Case:
    return request.param(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def choosing_server(case) -> Iterator[RunningServer]:
    settings = {"PENSTOCK_CONTEXT": ",".join(map(str, case.context)), "PENSTOCK_BEAM_SIZE": "4"}
    chosen = {"PENSTOCK_LM": case.decoding.lm, "PENSTOCK_GRAPH": case.decoding.graph}
    chosen["PENSTOCK_LANGUAGE"] = "".join(case.languages[-1:])
    yield from running_server(case.model, 16, 30.0, settings | {name: value for name, value in chosen.items() if value})


def _here(recognizer: StreamingRecognizer, path: Path, choice: StreamOptions) -> tuple:
    with recognizer.open_stream(options=choice.parameters()) as stream:
        result = stream.finish(read_audio(path, 16000))
        texts = [(entry.text, entry.language) for entry in result.entries if entry.is_final]
        return texts, [tuple(word[:3]) for word in stream.words], *_figures(result, stream.words)


def _there(client: Client, path: Path, choice: StreamOptions) -> tuple:
    samples = read_audio(path, 16000)
    with client.open_stream(options=choice) as stream:
        for start in range(0, len(samples), REQUEST_SAMPLES):
            stream.send(samples[start : start + REQUEST_SAMPLES])
        stream.finish()
        results = list(stream)
    words = [word for result in results for word in result.new_words]
    texts = [(result.text, result.language) for result in results if result.is_final]
    return texts, [(word.text, word.start_ms, word.end_ms) for word in words], *_figures(results[-1], words)


def _figures(result, words) -> tuple[list[tuple], list[float], list[float]]:
    """Alternatives with their words; the confidence of each word; the score of each alternative."""
    alternatives = [
        (one.text, [(word.text, word.start_ms, word.end_ms) for word in one.words]) for one in result.alternatives
    ]
    return alternatives, [word.confidence for word in words], [one.score for one in result.alternatives]


def test_each_stream_is_decoded_with_its_options(case, choosing_server):
    """The results of this process; every second stream over HTTP, and some beside them are rejected."""
    recognizer = StreamingRecognizer(case.model, case.context, max_streams=4, decoding=case.decoding)
    jobs = [(path, choice) for path in case.utterances for choice in case.choices]
    expected = [_here(recognizer, *job) for job in jobs]

    def recognize(number: int) -> tuple:
        protocol = ("grpc", "http")[number % 2]
        with Client(choosing_server.url(protocol), protocol, timeout_s=60) as client:
            return _there(client, *jobs[number])

    def be_rejected(_: int) -> None:
        wrong = StreamOptions(decoder="wfst", boosted_phrases=["go west"])
        with Client(choosing_server.url("grpc"), timeout_s=60) as client:
            with pytest.raises(StreamError, match=r"'west'|wfst"):
                _there(client, UTTERANCES[0], wrong)
            assert client.server_info().languages == case.languages
            if case.languages:
                with pytest.raises(StreamError, match=f"'xx'; accepted: {', '.join(case.languages)}"):
                    _there(client, UTTERANCES[0], StreamOptions(language="xx"))

    with ThreadPoolExecutor(10) as pool, ThreadPoolExecutor(1) as beside:
        rejections = beside.map(be_rejected, range(5))
        for (_, choice), found, wanted in zip(jobs, pool.map(recognize, range(len(jobs))), expected, strict=True):
            assert found[:3] == wanted[:3], choice
            assert found[3] == pytest.approx(wanted[3], abs=1e-3)
            assert found[4] == pytest.approx(wanted[4], abs=1e-2)
        assert len(list(rejections)) == 5
    assert len({str(one[:3]) for one in expected[: len(case.choices)]}) >= case.unlike
