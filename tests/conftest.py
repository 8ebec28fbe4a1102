"""Fixtures of the core's tests: one thread, and the golden checkpoints as bundles, each imported once."""

import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from benchmarks.speaker_models import write_speakers
from penstock.model.bundle import Checkpoint
from penstock.model.nemo.importer import import_nemo
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.importer import import_speakers
from tests.helpers.golden import GOLDEN
from tests.helpers.recognition import IN_PYTORCH

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

SHARED_SERVERS = "tests/server"
"""A unit of work: the files of this folder that share its two servers."""
LONG = (
    SHARED_SERVERS,
    *(f"tests/{name}" for name in ("commands", "loadtest/test_locust", "packaging", "pipeline/stages")),
    *("tests/transcription/test_processes", "client/tests/common/audio/test_recordings"),
    *(f"gateway/tests/{name}" for name in ("process", "rpc", "audio/test_damage")),
)
"""Prefixes of files whose few tests take long: they come first, the others behind them by their number."""

hypothesis.settings.register_profile("penstock", deadline=None)  # a machine may stall
hypothesis.settings.load_profile("penstock")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without looking for garbage: nearly all that is imported and collected stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what is marked `gpu` where there is no CUDA device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def uncompiled() -> Iterator[None]:
    """Runs encoders in PyTorch, in processes of the tests, too: OpenVINO compiles for half a second per batch size."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in IN_PYTORCH.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def golden_bundle(tmp_path_factory) -> Callable[[str], Checkpoint]:
    """Golden case name -> its bundle."""
    directory = tmp_path_factory.mktemp("golden")
    bundles: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in bundles:
            bundles[name] = import_nemo(GOLDEN / f"{name}.nemo", directory / name)
        return bundles[name]

    return get


@pytest.fixture(scope="session")
def speaker_bundle(tmp_path_factory) -> SpeakerCheckpoint:
    """The bundle of a tiny speaker model."""
    folder = tmp_path_factory.mktemp("speakers")
    return import_speakers(write_speakers(folder / "source"), folder / "speakers")


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The small checkpoint that comes with the repository."""
    return Path(__file__).parents[1] / "models" / "an4-rnnt-hybrid"


@functools.cache
def _starts_servers(file: str) -> bool:
    """Whether a file of tests has servers of its own."""
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    return "running_server(" in text or "TritonServer(" in text


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "LoadFileScheduling | None":
    """With `--dist loadfile`, files that share servers go to one process as if they were one, and long ones first."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return SHARED_SERVERS if file.startswith(f"{SHARED_SERVERS}/") and not _starts_servers(file) else file

        def _assign_work_unit(self, node: "WorkerController") -> None:
            name = next((unit for unit in self.workqueue if unit.startswith(LONG)), None)
            if name:
                self.workqueue.move_to_end(name, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)
