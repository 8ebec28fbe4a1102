"""Settings of the process for its device."""

import pytest
import torch

from penstock.runtime import prepare_device


@pytest.fixture
def made_current(monkeypatch) -> list[torch.device]:
    """Devices that were made the process's own, on a machine that may have none."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    kept = torch.backends.cudnn.allow_tf32
    yield devices
    torch.backends.cudnn.allow_tf32 = kept


@pytest.mark.parametrize(("name", "current"), [("cuda:1", [torch.device("cuda:1")]), ("cuda", []), ("cpu", [])])
def test_a_numbered_device_is_made_the_processs_own(made_current, name, current):
    assert prepare_device(name) == torch.device(name)
    assert made_current == current


@pytest.mark.parametrize(("name", "is_rounded"), [("cuda", False), ("cpu", True)])
def test_float32_is_not_rounded_on_a_gpu(made_current, name, is_rounded):
    torch.backends.cudnn.allow_tf32 = True
    prepare_device(torch.device(name))
    assert torch.backends.cudnn.allow_tf32 is is_rounded
