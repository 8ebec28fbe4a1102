"""The adapters of the three models, chained as in the ensemble, with a fake of Triton's module."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock import StreamingRecognizer
from penstock.errors import DeviceLostError
from penstock.model.bundle import Checkpoint
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from tests.helpers.ensemble import MODELS, SPEAKER_MODELS, Ensemble, running_ensemble
from tests.helpers.fake_triton import END, START, Request
from tests.helpers.golden import golden_samples

REQUEST_SAMPLES = 1600


@pytest.fixture
def model(golden_bundle) -> Path:
    return golden_bundle("rnnt_hybrid").directory


@pytest.fixture
def ensemble(model, monkeypatch, tmp_path) -> Iterator[Ensemble]:
    with running_ensemble(model, monkeypatch, tmp_path) as made:
        yield made


def parts_of(samples: np.ndarray) -> list[np.ndarray]:
    return [samples[at : at + REQUEST_SAMPLES] for at in range(0, len(samples), REQUEST_SAMPLES)]


def request(stream: str, part: np.ndarray, is_first: bool, is_last: bool, parameters: str = "{}") -> Request:
    return Request({"AUDIO": part[None]}, parameters, START * is_first | END * is_last, stream)


def test_the_ensemble_gives_the_recognizer_s_results(ensemble, model):
    """The streams are out of step, so that every batch mixes requests with and without chunks."""
    samples = golden_samples("medium").numpy()
    parts = parts_of(samples)
    recognizer = StreamingRecognizer(model, max_streams=3)
    streams = {name: recognizer.open_stream(name) for name in "abc"}
    delays = {"a": 0, "b": 1, "c": 4}
    compared = 0
    for step in range(len(parts) + max(delays.values())):
        live = {name: step - late for name, late in delays.items() if 0 <= step - late < len(parts)}
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


def test_a_rejected_row_is_logged_once(ensemble, caplog):
    rows = np.array([[[1, 0, START, -1], [2, 0, 0, -1]]])
    batched = Request({"AUDIO": np.zeros((1, 0), np.float32), "ROWS": rows}, '{"client": "me"}')
    (answer,) = ensemble.answer([batched])
    assert (answer.error, answer["ERROR_ROWS"].tolist()) == (None, [[1]])
    (logged,) = [record.fields for record in caplog.records if record.message.startswith("request rejected: ")]
    assert (logged["code"], logged["stream"], logged["row"]) == ("STREAM_NOT_OPEN", None, 1)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("has_begun", [False, True])
def test_the_end_of_a_stream_frees_its_slot_at_once_if_a_request_was_lost_between_models(ensemble, stages, has_begun):
    """Triton drops requests of lost connections, and rejects a request as a whole where a model's outputs fail."""
    table, silence = ensemble.adapters["features"]._table, np.zeros(REQUEST_SAMPLES, np.float32)
    free = table.count_free()
    if has_begun:
        ensemble.answer([request("a", silence, True, False)])
    lost = request("a", silence, not has_begun, False)
    for name in MODELS[:stages]:
        (answer,) = ensemble.adapters[name].execute([lost])
        lost = Request(lost.tensors | answer.tensors)
    assert table.count_free() == free - 1
    (end,) = ensemble.answer([request("a", silence, False, True)])
    assert str(end.error).startswith("STREAM_LOST: ")
    assert table.count_free() == free
    assert not table._is_closing.any()


def test_what_the_decoder_rejects_is_not_counted_as_decoded(ensemble, model):
    decoder, width = ensemble.adapters["decoder"], Checkpoint(model).config.encoder.d_model
    forged = {"ENCODED": np.zeros((1, 9, width), np.float32), "TICKET": np.zeros((1, 7), np.int64)}
    forged |= {"PROBABILITIES": np.zeros((1, 0, 1), np.float32), "SPEAKER_FRAMES": np.zeros((1, 0, 3), np.int64)}
    (answer,) = decoder.execute([Request(forged, "{}", START, "a")])
    assert answer.error.code == "INVALID_ARG"
    assert decoder._metrics._total == decoder._metrics._total_late == 0


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_a_lost_device_ends_the_model_s_process(ensemble, monkeypatch, name, caplog):
    def end(status: int):
        raise SystemExit(status)

    def fail(*_):
        raise DeviceLostError("cuda:1 cannot be used by this process any more: an illegal memory access")

    monkeypatch.setattr(os, "_exit", end)
    adapter = ensemble.adapters[name]
    monkeypatch.setattr(adapter._stage, "process_tickets", fail)
    with pytest.raises(SystemExit) as ended:
        adapter.execute([])
    assert ended.value.code == 1
    assert "the process ends: cuda:1 cannot be used" in caplog.text


def test_the_ensemble_with_speakers(model, speaker_bundle, monkeypatch, tmp_path):
    """Rows that asked and others; what the encoder gives in place of speakers is replaced."""
    monkeypatch.setenv("PENSTOCK_SPEAKERS", str(speaker_bundle.directory))
    samples = golden_samples("medium").numpy()
    rows = np.array([[[1, len(samples), START | END, 0], [2, len(samples), START | END, 1], [3, 0, 0, -1]]])
    options = '[{"speakers": "on", "decoder": "alsd", "n_best": 2}, {"decoder": "alsd", "n_best": 2}]'
    tensors = {"AUDIO": np.zeros((1, 0), np.float32), "ROWS": rows}
    tensors["PCM"] = (32_767 * np.concatenate([samples, samples])).astype(np.int16)[None]
    parameters = json.dumps({"client": "me", "options": options})
    with running_ensemble(model, monkeypatch, tmp_path, models=SPEAKER_MODELS) as ensemble:
        (answer,) = ensemble.answer([Request(tensors, parameters)])
        forged = tensors | {"TICKET": np.zeros((1, 7), np.int64)}
        both = forged | {"AUDIO": np.zeros((1, 5), np.float32)}
        rejected = ensemble.adapters["speakers"].execute([Request(forged), Request(both)])
    assert (answer.error, answer["ERROR_ROWS"].tolist()) == (None, [[2]])
    counts, words = answer["SPEAKER_COUNTS"][0].tolist(), answer["LIST_COUNTS"].reshape(-1, 3)[:, 0].tolist()
    assert counts == [words[0], 0] and words[0] == words[1] > 0
    assert set(answer["WORD_SPEAKERS"][0].tolist()) <= set(range(1, 9))
    first, *_, last = (json.loads(one) for one in answer["ALTERNATIVE_WORDS"][0])
    assert ({len(word) for word in first}, {len(word) for word in last}) == ({5}, {4})
    assert [one.error.code for one in rejected] == ["INVALID_ARG", "INVALID_ARG"]


def test_stages_warm_up_with_their_largest_batch(model, monkeypatch, tmp_path):
    warmed_up = []
    for stage in (FeatureStage, EncoderStage, DecoderStage):
        monkeypatch.setattr(stage, "warm_up", lambda stage, streams: warmed_up.append((type(stage), streams)))
    with running_ensemble(model, monkeypatch, tmp_path):
        assert warmed_up == [(FeatureStage, 64), (EncoderStage, 64), (DecoderStage, 64)]


def test_models_freeze_what_they_have_loaded(ensemble):
    """A full collection of a model's objects stalled it for 0.4 s."""
    assert ensemble.frozen_objects > 0
