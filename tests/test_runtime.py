"""Settings of the process for its device, and the memory that it can get."""

import ctypes
import os
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


V2, CPU, MEMORY = "cgroup2 none rw", "cgroup none rw,cpu,cpuacct", "cgroup none rw,memory"
A_CORE = {"cpu.cfs_quota_us": "100000", "cpu.cfs_period_us": "100000"}


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Makes the root of a system with 8 cores and 8 GiB left.

    groups: /proc/self/cgroup; mounts: at /MOUNT POINT, which group it shows and its kind; files: by their paths.
    """
    monkeypatch.setattr(runtime.psutil, "virtual_memory", lambda: SimpleNamespace(available=8 << 30))
    monkeypatch.setattr(runtime.os, "sched_getaffinity", lambda _: set(range(8)))

    def make(groups: str, mounts: dict[str, tuple[str, str]], files: dict[str, object]) -> Path:
        lines = [f"31 23 0:28 {top} /{point} rw shared:9 - {kind}" for point, (top, kind) in mounts.items()]
        for name, content in {"proc/self/cgroup": groups, "proc/self/mountinfo": "\n".join(lines), **files}.items():
            path = tmp_path / name.replace("\\040", " ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "cores"),
    [
        ("0::/", {}, {}, 8),
        ("0::/", {"g": ("/", V2)}, {"g/cpu.max": "250000 100000"}, 2),
        ("0::/", {"g": ("/", V2)}, {"g/cpu.max": "100000 0"}, 8),
        ("0::/a/b", {"g": ("/", V2)}, {"g/a/cpu.max": "300000 100000", "g/a/b/cpu.max": "600000 100000"}, 3),
        ("4:cpu,cpuacct:/a\n0::/", {"c": ("/", CPU)}, {f"c/a/{name}": text for name, text in A_CORE.items()}, 1),
        ("4:cpu:/", {"c": ("/", CPU)}, {"c/cpu.cfs_quota_us": "-1", "c/cpu.cfs_period_us": "100000"}, 8),
        ("1:cpuset:/", {"c": ("/", CPU)}, {f"c/{name}": text for name, text in A_CORE.items()}, 8),
        ("4:cpu:/", {"m": ("/", MEMORY)}, {f"m/{name}": text for name, text in A_CORE.items()}, 8),
        ("broken", {"g": ("/", "broken")}, {"g/cpu.max": "100000 100000"}, 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_of_the_quotas(system, groups, mounts, files, cores):
    assert runtime.core_count(system(groups, mounts, files)) == cores


@pytest.mark.parametrize(
    ("path", "top", "group"),
    [
        ("/", "/", "m"),
        ("/docker/1/a", "/docker/1", "m/a"),  # a container without a namespace of its own
        ("/docker/1", "/", "m"),  # ... that does not see where its part of the tree is
        ("/docker/1", "/docker/10", "m"),
        ("/", "/..", "m/lists"),  # a namespace within an older mount
        ("/../b", "/", "m/lists"),
        ("/a", "/", "m\\040n/a"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_memory_is_that_of_the_machine_and_of_all_control_groups(system, path, top, group, version):
    limit, used, events, total, kind, groups = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_", MEMORY, f"7:memory:{path}"),
        ("memory.max", "memory.current", "memory.events", "", V2, f"3:cpu:/x\n0::{path}"),
    )[version - 1]
    point = group.partition("/")[0]
    statistics = f"anon 5\n{total}active_file 1000\n{total}inactive_file 24"
    files = {used: 1 << 30, "memory.stat": statistics, events: "low 1\noom_kill 4"}
    files |= {"cgroup.procs": f"1\n{os.getpid()}"} if group == "m/lists" else {}

    def root(limits: dict[str, object]) -> Path:
        own = {f"{group}/{name}": content for name, content in files.items()}
        return system(groups, {point: (top, kind)}, own | {f"{name}/{limit}": text for name, text in limits.items()})

    for text in ("max", 2**63 - 4096, ""):
        assert runtime.available_memory_bytes(root({group: text})) == 8 << 30
    assert runtime.available_memory_bytes(root({group: 3 << 30})) == (2 << 30) + 1024  # cached files make room
    assert runtime.available_memory_bytes(root({group: 4096})) == 0
    assert runtime.memory_kills(root({})) == 4
    if version == 1:
        files["memory.stat"] += f"\nhierarchical_memory_limit {2 << 30}"
        assert runtime.available_memory_bytes(root({group: 2**63 - 4096})) == (1 << 30) + 1024
    if point != group:
        assert runtime.available_memory_bytes(root({group: "max", point: 1 << 30})) == 1 << 30


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
