"""Requests and tensors of the server, with a stand-in for Triton's own module."""

import json
import struct

import numpy as np
import pytest
import torch

from penstock.errors import ErrorCode, SettingError
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.results import Alternative, StreamResult
from penstock.pipeline.results.words import Token, Word
from penstock.pipeline.slots.ticket import Ticket, TicketSigner
from penstock.pipeline.stages.encoder import EncodedRows
from penstock.scoring.boosting.phrases import TokenPhrase
from penstock.serving import triton_texts
from penstock.serving.triton_texts import serialize_texts, stub_size
from tests.helpers.fake_triton import Request, Tensor, triton_module

OPTIONS = ResolvedOptions(
    decoder="alsd", beam_size=4, n_best=2, lm_weight=0.3, phrases=(TokenPhrase((3, 1), -1.5), TokenPhrase((7,), 2.0))
)


@pytest.fixture
def triton_io(monkeypatch):
    with triton_module(monkeypatch) as module:
        yield module


@pytest.mark.parametrize(
    ("parameters", "options", "finalize"),
    [
        ("", {}, False),
        ("{}", {}, False),
        ('{"finalize":true}', {}, True),
        ('{"finalize":"yes","decoder":"alsd"}', {"decoder": "alsd"}, "yes"),
        ('{"n_best":2}', {"n_best": 2}, False),
    ],
)
def test_finalize_is_no_option(triton_io, parameters, options, finalize):
    request = Request({"AUDIO": np.zeros((1, 5), np.float32)}, parameters, flags=1)
    audio = triton_io.audio_request(request)
    assert (audio.options, audio.finalize) == (options, finalize)
    assert (audio.stream_id, len(audio.samples), audio.is_start, audio.is_end) == ("a", 5, True, False)


def test_more_than_one_row_is_no_audio(triton_io):
    audio = triton_io.audio_request(Request({"AUDIO": np.zeros((2, 5), np.float32)}))
    assert audio.samples.shape == (2, 5)


def test_a_ticket_carries_what_the_features_stage_wrote(triton_io, tmp_path):
    signer = TicketSigner.shared(tmp_path)
    sent = triton_io.feature_response(
        torch.zeros(0, 4, 80), Ticket(np.arange(8)[None], 77, options={0: OPTIONS}), signer
    )
    found = triton_io.ticket(Request({"TICKET": sent["TICKET"]}), signer, reads_rest=True)
    assert (found.rows.tolist(), found.received_ns, found.options) == ([list(range(8))], 77, {0: OPTIONS})
    forged = sent["TICKET"].copy()
    forged[0, 3] = 1
    assert triton_io.ticket(Request({"TICKET": forged}), signer).code is ErrorCode.REQUEST_INVALID


@pytest.mark.parametrize("chunks", [0, 2])
def test_tensors_cross_between_models_on_the_host(triton_io, chunks):
    mel = torch.rand(chunks, 4, 80)
    sent = triton_io.tensor_output("MEL", mel)
    assert (sent.values.shape, sent.values.dtype) == ((1, chunks, 4, 80), np.float32)
    assert torch.equal(triton_io.tensor(Request({"MEL": sent}), "MEL"), mel)


RESULT = StreamResult(
    segment=2,
    text="zwölf uhr",
    is_final=True,
    audio_processed_s=1.25,
    words=(Word("zwölf", 40, 360, 0.5), Word("uhr", 400, 520, 0.25)),
    tokens=(Token(7, 3, 1, -0.5),),
    alternatives=(Alternative("zwölf", -1.5, -2.0, (Word("zwölf", 40, 360, 0.5),)),),
    language="de-DE",
    stable_chars=9,
)


def test_a_result_becomes_every_output(triton_io):
    sent = triton_io.results_response([RESULT])
    expected = {
        "SEGMENT": (np.int32, [2]),
        "TEXT": (np.object_, ["zwölf uhr".encode()]),
        "IS_FINAL": (np.bool_, [True]),
        "AUDIO_PROCESSED": (np.float32, [1.25]),
        "LANGUAGE": (np.object_, [b"de-DE"]),
        "STABLE_CHARS": (np.int32, [9]),
        "LIST_COUNTS": (np.int32, [2, 1, 1]),
        "WORDS": (np.object_, ["zwölf".encode(), b"uhr"]),
        "WORD_START_MS": (np.int32, [40, 400]),
        "WORD_END_MS": (np.int32, [360, 520]),
        "WORD_CONFIDENCE": (np.float32, [0.5, 0.25]),
        "TOKENS": (np.int32, [7]),
        "TIMESTAMPS": (np.int32, [3]),
        "ALTERNATIVES": (np.object_, ["zwölf".encode()]),
        "ALTERNATIVE_SCORES": (np.float32, [-1.5]),
        "ALTERNATIVE_WORDS": (np.object_, [b'[["zw\\u00f6lf", 40, 360, 0.5]]']),
    }
    found = {name: (sent[name].dtype.type, sent[name].tolist()) for name in sent.tensors}
    assert found == {name: (dtype, [values]) for name, (dtype, values) in expected.items()}


def test_lists_of_several_results_follow_each_other(triton_io):
    quiet = StreamResult(3, "", False, 1.5, (), ())
    next_one = StreamResult(3, "ein", False, 1.75, (Word("ein", 1300, 1400, 1.0),), (), stable_chars=3)
    sent = triton_io.results_response([RESULT, quiet, next_one])
    assert sent["SEGMENT"].tolist() == [[2, 3, 3]]
    assert sent["TEXT"].tolist() == [["zwölf uhr".encode(), b"", b"ein"]]
    assert sent["IS_FINAL"].tolist() == [[True, False, False]]
    assert sent["AUDIO_PROCESSED"].tolist() == [[1.25, 1.5, 1.75]]
    assert sent["STABLE_CHARS"].tolist() == [[9, 0, 3]]
    assert sent["LIST_COUNTS"].tolist() == [[2, 1, 1, 0, 0, 0, 1, 0, 0]]  # words, tokens, alternatives of each
    assert sent["WORDS"].tolist() == [["zwölf".encode(), b"uhr", b"ein"]]
    assert sent["WORD_START_MS"].tolist() == [[40, 400, 1300]]
    assert sent["TOKENS"].tolist() == [[7]]


def test_what_says_nothing_new_is_made_once(triton_io):
    """Five of six requests complete no chunk, and each made tensor is memory taken and given back in two processes."""
    quiet = StreamResult(0, "ten", False, 0.5, (), ())
    first, again = (triton_io.results_response([quiet]).tensors for _ in range(2))
    assert all(first[name] is again[name] for name in first)
    assert {tuple(first[name].values.shape) for name in first} == {(1, 1), (1, 3), (1, 0)}
    other = triton_io.results_response([StreamResult(1, "ten", False, 0.5, (), ())]).tensors
    assert [name for name in first if other[name] is not first[name]] == ["SEGMENT"]
    shapes = [(0, 7), (0, 7), (0, 8)]
    frames = [encoded(triton_io, torch.zeros(*shape)).tensors["ENCODED"] for shape in shapes]
    assert frames[0] is frames[1]
    assert [one.values.shape for one in frames] == [(1, 0, 7), (1, 0, 7), (1, 0, 8)]
    triton_io.release_outputs()
    assert encoded(triton_io, torch.zeros(0, 7)).tensors["ENCODED"] is not frames[0]


SIGNER = TicketSigner(b"key")
PACKED = SIGNER.pack(Ticket(np.arange(16).reshape(2, 8), 9, True, {1: OPTIONS}))


def encoded(triton_io, frames: torch.Tensor, rows: np.ndarray | None = None):
    request = Request({"TICKET": PACKED[None]})
    return triton_io.encoded_response(SIGNER, EncodedRows(frames, {}, rows), request)


def test_a_ticket_goes_on_with_the_frames(triton_io):
    """The ticket is as it came, or signed again with other rows and the same options."""
    assert encoded(triton_io, torch.zeros(2, 3))["TICKET"][0].tolist() == PACKED.tolist()
    rows = np.arange(16, 32).reshape(2, 8)
    (changed,) = encoded(triton_io, torch.zeros(2, 3), rows)["TICKET"]
    ticket = SIGNER.unpack(changed, reads_rest=True)
    assert ticket.rows.tolist() == rows.tolist()
    assert (ticket.received_ns, ticket.is_batched, ticket.options) == (9, True, {1: OPTIONS})


def test_frames_are_never_shared(triton_io):
    sent = [encoded(triton_io, torch.full((2, 3), value))["ENCODED"] for value in (1.0, 2.0)]
    assert [values.tolist() for values in sent] == [[[[value] * 3] * 2] for value in (1.0, 2.0)]


def test_frames_go_out_whatever_their_strides(triton_io):
    """The stub wants strides in C order; torch accepts any where a dimension is 1."""
    frames = torch.arange(12.0).as_strided((1, 1, 4), (5, 3, 1))
    assert triton_io.tensor_output("MEL", frames).values.tolist() == [[[[0.0, 1.0, 2.0, 3.0]]]]


def test_inputs_outlive_their_request(triton_io):
    sent = np.ones((1, 4), np.float32)
    audio = triton_io.audio_request(Request({"AUDIO": sent}))
    sent[:] = 0
    assert audio.samples.tolist() == [1, 1, 1, 1]


class TestStub:
    """The start of each model, with a stub or a numpy that do not fit."""

    def test_a_stub_that_fits_is_accepted(self, triton_io):
        triton_io.check_stub()

    @pytest.mark.parametrize("name", ["to_dlpack", "from_dlpack"])
    def test_wrong_numbers_are_named(self, triton_io, monkeypatch, name):
        right = getattr(Tensor, name)
        ones = {
            "to_dlpack": lambda self: right(Tensor.of("", np.ones_like(self.values))),
            "from_dlpack": lambda *arguments: Tensor.of("", right(*arguments).values[..., :1]),
        }
        monkeypatch.setattr(Tensor, name, ones[name])
        with pytest.raises(SettingError, match=rf"numpy {np.__version__} and torch .* stub, which misreads tensors"):
            triton_io.check_stub()

    def test_a_numpy_whose_bytes_the_stub_would_not_count_is_named(self, triton_io, monkeypatch):
        monkeypatch.setattr(triton_texts, "_ITEM_SIZE_OFFSET", 28)  # where any numpy has the number of the type
        with pytest.raises(SettingError, match=rf"numpy {np.__version__} .* stub, which misreads the size of texts"):
            triton_io.check_stub()


@pytest.mark.parametrize("texts", [["ein"], ["", ""], ["zwölf uhr", "", "x" * 70_000]])
def test_texts_are_serialized_as_triton_does_it(texts):
    array = np.array([[text.encode() for text in texts]], np.object_)
    expected = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    found = serialize_texts(array)
    assert (found.tobytes(), found.nbytes, stub_size(found)) == (expected, len(expected), len(expected))
    assert np.dtype("V1").flags == 0, "other arrays are as before"


def test_no_texts_have_no_bytes():
    assert np.asarray(serialize_texts(np.zeros((1, 0), np.object_))).nbytes == 0


@pytest.mark.parametrize(
    ("groups", "instances"),
    [
        ([{"count": 1, "kind": "KIND_MODEL", "gpus": []}], 1),
        ([{"count": 1, "kind": "KIND_GPU", "gpus": [0, 1]}], 2),
        ([{"count": 2, "kind": "KIND_MODEL", "gpus": []}], 2),
    ],
)
def test_a_model_has_one_instance(triton_io, groups, instances):
    args = {"model_config": json.dumps({"name": "encoder", "instance_group": groups})}
    if instances == 1:
        triton_io.check_single_instance(args)
        return
    with pytest.raises(SettingError, match=rf"encoder/config.pbtxt: .* {instances} instances; accepted: .*KIND_MODEL"):
        triton_io.check_single_instance(args)
