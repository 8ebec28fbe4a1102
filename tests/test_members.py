"""The three members' adapters, one behind the other as in the ensemble, with a stand-in for Triton's own module."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import StreamingRecognizer
from penstock.checkpoint import Checkpoint
from penstock.model_repository import find_model_repository
from penstock.stages.decoder import DecoderStage
from penstock.stages.encoder import EncoderStage
from penstock.stages.features import FeatureStage
from tests.fake_triton import END, START, Request, Response, load_member, triton_module
from tests.golden import golden_samples

MEMBERS = ("features", "encoder", "decoder")
PIECE_SAMPLES = 1600


class Ensemble:
    """The members, in one process."""

    def __init__(self, repository: Path):
        self.members = {name: load_member(repository, name) for name in MEMBERS}

    def answer(self, requests: list[Request]) -> list[Response]:
        """All in one batch; outputs of the members before are inputs of the next."""
        answers: list[Response] = [Response() for _ in requests]
        live, tensors = list(range(len(requests))), [dict(request.tensors) for request in requests]
        for name in MEMBERS:
            made = [
                Request(tensors[i], requests[i].parameters(), requests[i].flags(), requests[i].correlation_id())
                for i in live
            ]
            for i, answer in zip(live, self.members[name].execute(made), strict=True):
                answers[i] = answer
                tensors[i] |= answer.tensors
            live = [i for i in live if answers[i].error is None]
        return answers

    def finalize(self) -> None:
        for member in self.members.values():
            member.finalize()


@pytest.fixture
def model(golden_bundle) -> Path:
    return golden_bundle("rnnt_hybrid").directory


@contextmanager
def members(model, monkeypatch, tmp_path) -> Iterator[Ensemble]:
    """As in a server with 3 slots."""
    variables = {"MODEL": model, "RUNTIME_DIR": tmp_path, "MAX_STREAMS": "3", "DEVICE": "cpu"}
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    frozen, threads = gc.get_freeze_count(), torch.get_num_threads()
    try:
        with triton_module(monkeypatch):
            made = Ensemble(find_model_repository())
            yield made
            made.finalize()
    finally:
        torch.set_num_threads(threads)
        if not frozen:
            gc.unfreeze()


@pytest.fixture
def ensemble(model, monkeypatch, tmp_path) -> Iterator[Ensemble]:
    with members(model, monkeypatch, tmp_path) as made:
        yield made


def pieces(samples: np.ndarray) -> list[np.ndarray]:
    return [samples[at : at + PIECE_SAMPLES] for at in range(0, len(samples), PIECE_SAMPLES)]


def request(stream: str, part: np.ndarray, is_first: bool, is_last: bool, parameters: str = "{}") -> Request:
    return Request({"AUDIO": part[None]}, parameters, START * is_first | END * is_last, stream)


def test_members_say_what_the_recogniser_says(ensemble, model):
    """Of streams that are out of step, so that every batch mixes requests with and without chunks."""
    samples = golden_samples("medium").numpy()
    parts = pieces(samples)
    recognizer = StreamingRecognizer(model, max_streams=3)
    streams = {name: recognizer.open_stream(name) for name in "abc"}
    delays = {"a": 0, "b": 1, "c": 4}
    compared = 0
    for turn in range(len(parts) + max(delays.values())):
        live = {name: turn - late for name, late in delays.items() if 0 <= turn - late < len(parts)}
        sent = [request(name, parts[at], at == 0, at == len(parts) - 1) for name, at in live.items()]
        for (name, at), found in zip(live.items(), ensemble.answer(sent), strict=True):
            stream = streams[name]
            expected = stream.finish(parts[at]) if at == len(parts) - 1 else stream.push(parts[at])
            assert found["TEXT"].item().decode() == expected.text
            assert found["SEGMENT"].item() == expected.segment
            assert found["IS_FINAL"].item() == expected.is_final
            assert found["AUDIO_PROCESSED"].item() == np.float32(expected.audio_processed_s)
            assert [word.decode() for word in found["WORDS"][0]] == [word.text for word in expected.words]
            assert found["TOKENS"][0].tolist() == [token.id for token in expected.tokens]
            assert found["TIMESTAMPS"][0].tolist() == [token.timestamp for token in expected.tokens]
            compared += len(expected.tokens)
    assert compared > 10


def test_a_refused_request_costs_its_batch_nothing(ensemble):
    silence = np.zeros(PIECE_SAMPLES, np.float32)
    good, strange, loud = ensemble.answer(
        [
            request("a", silence, True, False),
            request("nobody", silence, False, False),
            request("b", np.full(PIECE_SAMPLES, np.nan, np.float32), True, False),
        ]
    )
    assert good.error is None
    assert (strange.error.code, loud.error.code) == ("NOT_FOUND", "INVALID_ARG")


def test_what_the_decoder_refuses_is_not_counted_as_decoded(ensemble, model):
    decoder, width = ensemble.members["decoder"], Checkpoint(model).config.encoder.d_model
    forged = {"ENCODED": np.zeros((1, 9, width), np.float32), "TICKET": np.zeros((1, 7), np.int64)}
    (answer,) = decoder.execute([Request(forged, "{}", START, "a")])
    assert answer.error.code == "INVALID_ARG"
    assert decoder._metrics._total == decoder._metrics._total_late == 0


def test_members_rehearse_their_largest_batch(model, monkeypatch, tmp_path):
    rehearsed = []
    for stage in (FeatureStage, EncoderStage, DecoderStage):
        monkeypatch.setattr(stage, "rehearse", lambda stage, streams: rehearsed.append((type(stage), streams)))
    with members(model, monkeypatch, tmp_path):
        assert rehearsed == [(FeatureStage, 64), (EncoderStage, 64), (DecoderStage, 64)]


def test_members_freeze_what_they_have_loaded(ensemble):
    """A full collection of a member's objects stalled it for 0.4 s."""
    assert gc.get_freeze_count() > 10_000
