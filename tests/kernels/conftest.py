"""Where kernels are tested: interpreted on the CPU, compiled on a CUDA device (marker `gpu`)."""

import pytest
import torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def _is_interpreted() -> bool:
    import triton.language

    from penstock.kernels import arithmetic

    return all(type(f).__name__ == "InterpretedFunction" for f in (arithmetic.sigmoid, triton.language.max))


@pytest.fixture(params=DEVICES)
def kernel_device(request, monkeypatch) -> str:
    """A device on which kernels run during this test.

    The variable is read when the GPU language is first imported and at every launch; other tests never see it.
    """
    device = request.param
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if device == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    elif not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("triton", reason="the GPU language is not installed: extra `kernels`")
    if _is_interpreted() != (device == "cpu"):
        reason = "a process interprets kernels or compiles them: run `-m gpu` and the other tests apart"
        (pytest.skip if torch.cuda.is_available() else pytest.fail)(reason)
    return device
