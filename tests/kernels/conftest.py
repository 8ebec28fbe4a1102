"""Devices for kernels: interpreted on the CPU, compiled on a CUDA device (marker `gpu`)."""

import importlib
import os

import pytest
import torch

KERNELS = ("chunk_step", "graph_frame", "joint", "ngram", "predictor")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

# Triton decides when it is imported whether it interprets, for the whole process; other tests never see the variable.
with pytest.MonkeyPatch.context() as patch:
    if not torch.cuda.is_available():
        patch.setenv("TRITON_INTERPRET", "1")
    IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
    from penstock.kernels import blocks

    for name in KERNELS:  # decorated now
        importlib.import_module(f"penstock.kernels.{name}")


@pytest.fixture(params=DEVICES)
def kernel_device(request, monkeypatch) -> str:
    """A device on which kernels run during this test; the variable is read again at every launch."""
    device = request.param
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if device == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    elif not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("triton", reason="the Triton language is not installed: extra `kernels`")
    if (device == "cpu") != IS_INTERPRETED:
        pytest.skip("a process interprets kernels or compiles them: run `-m gpu` and the other tests apart")
    for function in (blocks.sigmoid, blocks.tl.max):
        assert (type(function).__name__ == "InterpretedFunction") == IS_INTERPRETED, "Triton was imported before"
    return device
