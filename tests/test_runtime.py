"""Settings of the process for its device, and the memory that it can get."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from penstock import runtime
from penstock.errors import DeviceLostError, SettingError
from penstock.recognizer import StreamingRecognizer
from penstock.runtime import check_device, check_device_works, prepare_device, use_huge_pages


@pytest.fixture
def made_current(monkeypatch) -> list[torch.device]:
    """Devices that were made the process's own, on a machine that may have none."""
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
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


@pytest.mark.parametrize(
    ("device", "count", "build", "accepted"),
    [
        ("cuda", 0, None, "cpu; this build of torch has no CUDA"),
        ("cuda:1", 0, "13.0", "cpu; torch finds no CUDA device here"),
        ("cuda:2", 2, "13.0", "cpu, cuda, cuda:NUMBER up to 1"),
        ("gpu", 2, "13.0", "cpu, cuda, cuda:NUMBER up to 1"),
    ],
)
def test_a_device_that_torch_cannot_use_is_rejected(monkeypatch, device, count, build, accepted):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(SettingError) as rejection:
        check_device(device, "--device")
    assert str(rejection.value) == f"SETTING_INVALID: --device is {device!r}; accepted: {accepted}"


def test_a_recognizer_rejects_a_missing_gpu(monkeypatch, bundled_model):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SettingError, match="device is 'cuda'; accepted: cpu; "):
        StreamingRecognizer(bundled_model, device="cuda")


@pytest.fixture
def system(tmp_path, monkeypatch) -> Path:
    """The root of a system with 8 GiB left and without control groups."""
    monkeypatch.setattr(runtime.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 << 30))
    monkeypatch.setattr(runtime, "_CONTROL_GROUP", tmp_path / "cgroup")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (("memory.max", "memory.current", "memory.stat"), "max"),
        (("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"), f"{2**63 - 4096}"),
    ],
    ids=["version 2", "version 1"],
)
def test_available_memory_is_that_of_the_machine_and_of_the_control_group(system, files, limit):
    assert runtime.available_memory_bytes() == 8 << 30
    paths = [system / "cgroup" / file for file in files]
    paths[0].parent.mkdir(parents=True)
    for path, text in zip(paths, (limit, "1073741824", "anon 5\nactive_file 1000\ninactive_file 24"), strict=True):
        path.write_text(text + "\n")
    assert runtime.available_memory_bytes() == 8 << 30
    paths[0].write_text(f"{3 << 30}\n")
    assert runtime.available_memory_bytes() == (2 << 30) + 1024  # cached files make room
    paths[0].write_text("4096\n")
    assert runtime.available_memory_bytes() == 0


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", torch.device("cuda:1")])
@pytest.mark.parametrize("is_lost", [False, True])
def test_a_device_is_lost_if_it_fails_after_the_error(monkeypatch, device, is_lost):
    asked, error = [], RuntimeError("an illegal memory access")

    def synchronize(device):
        asked.append(str(device))
        if is_lost:
            raise RuntimeError("still failing")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    if is_lost and device != "cpu":
        with pytest.raises(DeviceLostError, match=rf"{device} cannot be used .*: an illegal memory access") as lost:
            check_device_works(device, error)
        assert lost.value.__cause__ is error
    else:
        check_device_works(device, error)
    assert asked == ([] if device == "cpu" else [str(device)])


def test_huge_pages_are_requested_for_whole_pages_of_private_memory(monkeypatch):
    requested, page = [], 1 << 21
    memory = torch.full((1 << 23,), 1.0)  # 32 MiB

    def madvise(*call: int) -> None:
        requested.append(call)

    with monkeypatch.context() as patches:
        patches.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(madvise=madvise))
        use_huge_pages()
    assert all(start % page == size % page == 0 < size and advice == 25 for start, size, advice in requested)
    middle = memory.data_ptr() + (16 << 20)
    assert any(start <= middle < start + size for start, size, _ in requested)


def test_memory_in_huge_pages_keeps_its_contents():
    blocks = [torch.full((1 << 18,), float(number)) for number in range(32)]
    use_huge_pages()
    assert [block.unique().tolist() for block in blocks] == [[float(number)] for number in range(32)]
