"""Fixtures of the core's tests: one thread, and the golden checkpoints as bundles, each imported once."""

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import torch

from penstock.checkpoint import Checkpoint
from penstock.nemo_import import import_nemo
from tests.golden import golden_case

hypothesis.settings.register_profile("penstock", deadline=None)  # a machine may be held up
hypothesis.settings.load_profile("penstock")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden_bundle(tmp_path_factory) -> Callable[[str], Checkpoint]:
    """Golden case name -> its bundle."""
    directory = tmp_path_factory.mktemp("golden")
    bundles: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in bundles:
            bundles[name] = import_nemo(golden_case(name).nemo_path, directory / name)
        return bundles[name]

    return get


@pytest.fixture(scope="session")
def bundled_model() -> Path:
    """The small checkpoint that comes with the repository."""
    return Path(__file__).parents[1] / "models" / "an4-rnnt-hybrid"
