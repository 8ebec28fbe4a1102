"""Every setting: its variable, its flag, its default, and wrong values by name."""

import os
import shutil
from typing import get_args

import pytest
import torch

from penstock.encoder import precision
from penstock.errors import PenstockError
from penstock.graphs import select as cuda_graphs
from penstock.kernels import capability
from penstock.model.bundle_files import CONFIG_FILE
from penstock.model.config import AttentionContext
from penstock.pipeline.options import decoding_config
from penstock.serving.model_repository import find_model_repository
from penstock.serving.settings import Precision, ServeOptions, Settings


@pytest.fixture
def environment(golden_bundle) -> dict[str, str]:
    return {"PENSTOCK_MODEL": str(golden_bundle("rnnt_hybrid").directory)}


def test_the_model_alone_is_enough(environment):
    settings = Settings.from_environment(environment)
    assert settings.checkpoint.config.transducer.vocabulary_size == 48
    assert settings.context == AttentionContext(14, 6)
    assert (settings.options.max_streams, settings.slots) == (64, 72)
    assert (settings.options.idle_seconds, settings.options.threads) == (30.0, 1)
    assert settings.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert settings.runtime_directory.name == f"penstock-{os.getppid()}"  # the model processes have one parent


def test_a_checkpoint_of_another_sample_rate_is_rejected(environment, tmp_path):
    bundle = shutil.copytree(environment["PENSTOCK_MODEL"], tmp_path / "telephone")
    config = bundle / CONFIG_FILE
    config.write_text(config.read_text().replace('"sample_rate_hz": 16000', '"sample_rate_hz": 8000'))
    with pytest.raises(PenstockError, match="telephone: a checkpoint for audio at 8000 Hz; accepted by a server"):
        Settings.from_environment({"PENSTOCK_MODEL": str(bundle)}, is_verified=True)


WRONG = {
    "context": ("6", "70;6", "wide"),
    "max_streams": ("0", "1.5", "65537"),
    "idle_seconds": ("0", "x", "nan", "inf", "60.5"),
    "device": ("gpu", "cuda:", "CPU", "cuda:x"),
    "cuda_graphs": ("on", "AUTO"),
    "listen": ("localhost", "::ffff:127.0.0.1", "192.0.2.77"),
    "verbose": ("yes", "2"),
}
"""One of each kind: client/tests/common/test_declaration.py has all kinds of values."""
CASES = [(setting, text) for setting in ServeOptions.options() for text in WRONG.get(setting.name, ())]


@pytest.mark.parametrize(("setting", "text"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_wrong_value_is_rejected_by_name_with_what_is_accepted(setting, text):
    for environment, given, source in (({setting.variable: text}, None, setting.variable), ({}, text, setting.flag)):
        with pytest.raises(PenstockError) as rejection:
            setting.read(environment, given)
        assert str(rejection.value) == f"SETTING_INVALID: {source} is {text!r}; accepted: {setting.accepted}"


@pytest.mark.parametrize("setting", ServeOptions.options(), ids=lambda setting: setting.name)
def test_an_empty_variable_is_the_default_but_an_empty_flag_is_wrong(setting):
    assert setting.read({setting.variable: ""}) == setting.read({}) == setting.default
    with pytest.raises(PenstockError, match=f"{setting.flag} is ''; accepted: "):
        setting.read({}, "")


def test_defaults_are_accepted():
    given = [setting for setting in ServeOptions.options() if setting.default is not None]
    assert len(given) > 10
    assert all(setting.parse(str(setting.default)) == setting.default for setting in given)


def test_what_is_said_elsewhere_is_the_same_here():
    assert get_args(decoding_config.CudaGraphs) == cuda_graphs.MODES
    assert get_args(decoding_config.Kernels) == capability.KERNELS
    assert get_args(Precision) == precision.PRECISIONS


def test_every_setting_has_help_and_a_switch_has_a_default():
    for setting in ServeOptions.options():
        assert setting.help
        assert "%" not in setting.help + setting.accepted, "argparse formats help texts"
        assert setting.metavar or isinstance(setting.default, bool)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"PENSTOCK_MODEL": ""}, "PENSTOCK_MODEL is not set"),
        ({"PENSTOCK_MODEL": "/nowhere"}, "/nowhere: not a bundle"),
        ({"PENSTOCK_CONTEXT": "6"}, "PENSTOCK_CONTEXT is '6'; accepted: LEFT,RIGHT, for example 70,6"),
        ({"PENSTOCK_MAX_STREAMS": "65537"}, "PENSTOCK_MAX_STREAMS is '65537'; accepted: integers from 1 to 65536"),
        ({"PENSTOCK_LM_WEIGHT": "0.3"}, "lm_weight is 0.3, but there is no language model"),
        ({"PENSTOCK_CONTEXT": "70,6"}, r"context \[70,6\] is not one of this checkpoint's: \[14,6\] \[12,3\]"),
    ],
)
def test_a_wrong_model_or_context_is_named(environment, changes, match):
    with pytest.raises(PenstockError, match=match):
        Settings.from_environment(environment | changes)


def test_triton_itself_limits_no_streams():
    """A sequence batcher would hold back streams beyond its limit without an error."""
    for config in find_model_repository().glob("*/config.pbtxt"):
        text = config.read_text(encoding="utf-8")
        assert "sequence_batching" not in text
        assert ("dynamic_batching" in text) != ("ensemble_scheduling" in text)


def test_models_with_one_runtime_directory_share_a_ledger(environment, tmp_path):
    settings = Settings.from_environment(environment | {"PENSTOCK_RUNTIME_DIR": str(tmp_path / "run")})
    first, second = settings.open_ledger(), settings.open_ledger()
    first.settle("encoder", settings.slots - 1, 4)
    assert second.settled_requests(settings.slots - 1, 4) == 1
    assert (tmp_path / "run" / "slots").exists()
