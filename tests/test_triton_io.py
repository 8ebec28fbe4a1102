"""Requests and tensors of the server, with a stand-in for Triton's own module."""

import importlib
import sys
import types

import numpy as np
import pytest
import torch

from penstock.features import MelChunks
from penstock.stages.features import FeatureReply
from penstock.streams import NO_LEASE, Lease
from penstock.ticket_seal import TicketSeal


class Tensor:
    def __init__(self, name: str, values: np.ndarray):
        self.name, self._values = name, values

    def as_numpy(self) -> np.ndarray:
        return self._values


class Request:
    """One of Triton's."""

    def __init__(self, tensors: dict[str, np.ndarray], parameters: str = "{}", flags: int = 0):
        self.tensors = tensors
        self.parameters, self.flags, self.correlation_id = (lambda: parameters), (lambda: flags), (lambda: "a")


@pytest.fixture
def triton_io(monkeypatch):
    stub = types.SimpleNamespace(
        Tensor=Tensor,
        InferenceResponse=lambda tensors: {tensor.name: tensor.as_numpy() for tensor in tensors},
        get_input_tensor_by_name=lambda request, name: Tensor(name, request.tensors[name]),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    monkeypatch.delitem(sys.modules, "penstock.triton_io", raising=False)
    yield importlib.import_module("penstock.triton_io")
    sys.modules.pop("penstock.triton_io", None)


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
    assert triton_io.stream_options(request) == options


def test_more_than_one_row_is_no_audio(triton_io):
    audio = triton_io.audio_request(Request({"AUDIO": np.zeros((2, 5), np.float32)}))
    assert audio.samples.shape == (2, 5)


def test_a_ticket_says_what_the_feature_member_said(triton_io, tmp_path):
    seal = TicketSeal.shared(tmp_path)
    reply = FeatureReply(Lease(3, 2**60), MelChunks(torch.zeros(0, 4, 80), 2, 999), True)
    sent = triton_io.feature_response(reply, 77, seal)
    found = triton_io.ticket(Request({"TICKET": sent["TICKET"]}), seal)
    assert found == triton_io.Ticket(Lease(3, 2**60), 2, 999, True, 77)
    forged = sent["TICKET"].copy()
    forged[0, 0] = 1
    assert triton_io.ticket(Request({"TICKET": forged}), seal).lease == NO_LEASE
