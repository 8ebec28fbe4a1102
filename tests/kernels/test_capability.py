"""Kernels are chosen where they run, rejected by name where they do not, and imported only when needed."""

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from penstock import extras
from penstock.decoding.transducer.networks import open_network
from penstock.errors import SettingError
from penstock.kernels import blocks, capability
from penstock.kernels.capability import available, why_unavailable
from penstock.kernels.contracts import JointWeights
from penstock.kernels.joint import FusedJoint
from penstock.model.bundle import Checkpoint
from tests.helpers.kernel_inputs import random_joint
from tests.helpers.random_models import random_checkpoint
from tests.helpers.reference.joint import choose_labels

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY_BYTES = 99 * 1024  # of the smallest supported devices (compute capability 8.6 and 8.9)
MATRIX_KERNELS = {"_share_kernel", "_merge_kernel", "_layer_kernel", "_projection_kernel"}
GRAPH_KERNELS = {
    "token_degree_kernel", "_fit_kernel", "arc_kernel", "phrase_kernel", "arc_degree_kernel", "closure_kernel",
    "_recombine_kernel", "compact_kernel",
}  # fmt: skip
ENCODER_KERNELS = {"_attend_kernel", "_convolve_kernel"}  # in 16 bit
KERNELS = MATRIX_KERNELS | GRAPH_KERNELS | {"_lookup_kernel", "_double_kernel"}
SPILLED_BYTES = {
    ("_share_kernel", "aligned", 80, "fp16"): 16,
    ("_share_kernel", "odd", 90, "fp32"): 24,
    ("_share_kernel", "odd", 100, "fp32"): 424,
    ("_convolve_kernel", "aligned", 90, "bf16"): 8,
    ("_convolve_kernel", "odd", 90, "bf16"): 16,
    **{("_attend_kernel", "odd", device, kind): 8 for device in (80, 90) for kind in ("bf16", "fp16")},
}
"""Bytes that a thread spills where registers do not suffice (docs/internals/kernels.md)."""
SPILLS_MEASURED_WITH = "3.6.0"
"""The Triton version of these figures; another one distributes registers in its own way."""


def test_a_cpu_runs_no_kernels(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not available("cpu")
    assert "not on cpu" in why_unavailable("cpu")
    assert capability.resolve("auto", "cpu") == "torch"
    with pytest.raises(ValueError, match="this kernel cannot run"):
        FusedJoint(random_joint(0, 5, 4, 0, "relu"))


def test_a_missing_triton_is_reported(monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="the Triton language\\) is not installed"):
        FusedJoint(random_joint(0, 5, 4, 0, "relu"))


def test_a_folder_named_triton_is_not_the_package(monkeypatch):
    """The installation of a server has one, which a search path may reach: there is a `triton` without a language."""

    def fail(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(extras.importlib, "import_module", fail)
    assert "does not load: No module named 'triton.language'" in capability.why_no_triton()


@pytest.mark.parametrize(("outcome", "kernels"), [(None, "fused"), ("a trial failed: no C compiler", "torch")])
def test_kernels_are_available_only_after_a_trial(monkeypatch, outcome, kernels):
    """A machine that seems to have a GPU and Triton; the trial runs once per device."""
    tried = []

    def try_out(device):
        tried.append(device)
        return outcome

    capability._why_trial_fails.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(capability, "why_no_triton", lambda: None)
    monkeypatch.setattr(blocks, "try_out", try_out)
    try:
        assert [why_unavailable("cuda:1"), why_unavailable("cuda:1")] == [outcome, outcome]
        assert capability.resolve("auto", "cuda:1") == kernels
        if outcome:
            with pytest.raises(SettingError, match="are not possible: a trial failed: no C compiler"):
                capability.resolve("fused", "cuda:1")
    finally:
        capability._why_trial_fails.cache_clear()
    assert tried == [torch.device("cuda:1")]


@pytest.mark.parametrize("problem", ["no C compiler", "wrong", None])
def test_the_trial_reports_what_fails(monkeypatch, problem):
    class Kernel:
        def __getitem__(self, grid):
            def launch(values, count):
                if problem == "no C compiler":
                    raise RuntimeError("Failed to find C compiler.")
                values.mul_(3 if problem else 2)

            return launch

    monkeypatch.setattr(blocks, "_double_kernel", Kernel())
    found = blocks.try_out(torch.device("cpu"))
    expected = {
        "no C compiler": "a trial failed: RuntimeError: Failed to find C compiler.",
        "wrong": "a trial returned [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0], expected [0.0, 2.0, 4.0, 6.0, 8.0, "
        "10.0, 12.0, 14.0]",
        None: None,
    }
    assert found == expected[problem]


def test_triton_is_imported_only_for_kernels():
    code = """
import sys, torch
from penstock.kernels.capability import available
from penstock.decoding.transducer.networks import open_network
from penstock.decoding.transducer.interface import TransducerNetwork
from penstock.scoring.ngram.lm import NgramLm
assert not available("cpu")
assert "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("seed", range(4))
def test_the_reference_is_the_network(tmp_path, seed):
    """The reference and `TransducerNetwork.score` give the same scores for the same tensors."""
    durations = (0, 1, 2, 4) if seed % 2 else ()
    checkpoint: Checkpoint = random_checkpoint(tmp_path, seed, durations=durations)
    network, config = open_network(checkpoint), checkpoint.config.transducer
    tensors = checkpoint.tensors("joint.")
    weight, bias = tensors["joint.output.weight"].t().contiguous(), tensors["joint.output.bias"]
    weights = JointWeights(weight, bias, config.vocabulary_size, config.joint_activation)
    rows = torch.randn(6, 5, config.joint_hidden, generator=torch.Generator().manual_seed(seed))
    predictor_rows = network.start(6).projected
    choice, scores = choose_labels(weights, rows, predictor_rows), network.score(rows, predictor_rows.unsqueeze(1))
    label_score, label = scores.labels.max(-1)
    assert torch.equal(choice.label.flatten(), label)
    torch.testing.assert_close(choice.label_score.flatten(), label_score)
    torch.testing.assert_close(choice.blank_score.flatten(), scores.blank)
    if durations:
        assert torch.equal(choice.duration.flatten(), scores.durations.argmax(-1))


@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("device", [80, 90, 100])
@pytest.mark.parametrize("hints", ["aligned", "odd"])
def test_every_kernel_compiles_without_spills(hints, device, kind, tmp_path, monkeypatch):
    """The interpreter accepts what the compiler rejects; the compiler needs no device."""
    if extras.importlib.util.find_spec("triton") is None:
        pytest.skip("the Triton language is not installed: extra `kernels`")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    script = ROOT / "tests" / "helpers" / "compile_kernels.py"
    command = [sys.executable, script, str(device), kind, hints]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    programs = [json.loads(line) for line in done.stdout.splitlines()]
    assert {program["kernel"] for program in programs} == (
        KERNELS if kind == "fp32" else MATRIX_KERNELS | ENCODER_KERNELS
    )
    for program in programs:
        assert program["shared"] <= SHARED_MEMORY_BYTES, program
        if version("triton") == SPILLS_MEASURED_WITH:
            assert program["stack"] <= SPILLED_BYTES.get((program["kernel"], hints, device, kind), 0), program
    if hints == "aligned":
        assert Counter(program["kernel"] for program in programs)["arc_kernel"] in (0, 3), "no program for each frame"
