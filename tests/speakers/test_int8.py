"""Speaker models in int8: near to float32 on speech, stored and opened, rows that do not depend on each other."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.speaker_models import write_speakers
from penstock import linear
from penstock.cli import main
from penstock.encoder.int8 import Int8Linear, activation_bits
from penstock.errors import CheckpointError
from penstock.frontend.audio_file import read_audio
from penstock.model.bundle_files import CONFIG_FILE, WEIGHTS_FILE, write_document
from penstock.pipeline.slots.drain import DrainBoard
from penstock.pipeline.slots.ticket import END, SPEAKER_MODE, START, Ticket
from penstock.pipeline.stages.audio_rows import SpeakerAudio
from penstock.pipeline.stages.speakers import SpeakerStage
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock.speakers.diarizer import Diarizer
from penstock.speakers.importer import import_speakers
from penstock.speakers.network import open_network
from penstock_common.options import SPEAKER_MODES
from tests.helpers.golden import AN4

pytestmark = pytest.mark.skipif(not activation_bits(), reason="this torch has no int8 product for this CPU")
MAX_MEAN_DIFFERENCE, MAX_CHANGED = {7: 0.006, 8: 0.003}[activation_bits() or 8], 0.02
"""Difference of probabilities to float32, and the share of them that is on the other side of 0.5."""


@pytest.fixture(autouse=True)
def converts_all(monkeypatch):
    """The products of small models, too."""
    monkeypatch.setattr(linear, "MIN_PACKED_NUMBERS", 0)


@pytest.fixture
def bundles(tmp_path) -> list[SpeakerCheckpoint]:
    """In float32 and in int8."""
    source = write_speakers(tmp_path / "source", layers=4)
    return [import_speakers(source, tmp_path / name, is_int8=name == "int8") for name in ("float32", "int8")]


def products(network) -> list:
    return [getattr(layer, name) for layer in network._layers for name in ("_inputs", "_out", "_up", "_down")]


def test_probabilities_of_speech(bundles):
    files = [json.loads(line)["audio_filepath"] for line in (AN4 / "manifest.jsonl").read_text().splitlines()]
    speech = torch.cat([torch.from_numpy(read_audio(AN4 / file, 16000)) for file in files])
    exact = Diarizer(bundles[0]).probabilities(speech)
    for diarizer in (Diarizer(bundles[0], "int8"), Diarizer(bundles[1])):
        assert all(isinstance(product, Int8Linear) for product in products(diarizer.network))
        found = diarizer.probabilities(speech)
        assert not torch.equal(found, exact)
        assert (found - exact).abs().mean() < MAX_MEAN_DIFFERENCE
        assert ((found > 0.5) != (exact > 0.5)).float().mean() < MAX_CHANGED


@pytest.mark.parametrize(("number", "precision"), [(0, "int8"), (1, "auto"), (0, "auto")])
def test_the_served_model(bundles, number, precision):
    stage = SpeakerStage(bundles[number], 1, DrainBoard(1), precision=precision)
    is_int8 = all(isinstance(product, Int8Linear) for product in products(stage.steps.network))
    assert is_int8 == (number == 1 or precision == "int8")
    samples = np.sin(np.arange(160_000) * 0.1).astype(np.float32) / 10
    sent = SpeakerAudio(samples, np.array([len(samples)]), np.array([START | END]))
    flags = START + END + SPEAKER_MODE * len(SPEAKER_MODES)  # the last one is that of files
    (answer,) = stage.process_tickets([Ticket(np.array([[0, 1, 0, flags, 0, 0, 0, 0]]))], [sent])
    expected = Diarizer(bundles[number], precision).probabilities(torch.from_numpy(samples)).numpy()
    np.testing.assert_allclose(answer.probabilities, expected, rtol=0, atol=1e-5)


def test_what_is_stored_is_what_is_opened(bundles):
    float32, int8 = bundles
    assert json.loads((int8.directory / CONFIG_FILE).read_text())["version"] == 2
    sizes = [(bundle.directory / WEIGHTS_FILE).stat().st_size for bundle in bundles]
    assert sizes[1] < 0.5 * sizes[0]
    network = open_network(int8)
    assert network.int8.products == {"int8": 16, "float32": 0} and not network.int8.needs_speech
    names = [f"layers.{n}.attention.{name}.weight" for n in range(4) for name in ("query", "key", "value")]
    assert set(names) < int8.int8
    exact = float32.tensors()
    for name, tensor in int8.tensors().items():
        assert torch.equal(tensor, exact[name]) == (name not in int8.int8)


def test_rows_do_not_depend_on_each_other(bundles):
    network = open_network(bundles[1])
    frames = torch.randn(3, 20, 64, generator=torch.Generator().manual_seed(1))
    frames[1] *= 100
    lengths = torch.tensor([20, 20, 7])
    found = network(frames, lengths)
    for row, length in enumerate(lengths):
        alone = network(frames[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(found[row, : 8 * length], alone[0], rtol=0, atol=1e-4)


def test_a_bundle_is_converted_once(bundles, tmp_path, capsys):
    float32, int8 = (bundle.directory for bundle in bundles)
    assert main(["import", str(float32), str(tmp_path / "new"), "--precision", "int8"]) == 0
    assert (tmp_path / "new" / WEIGHTS_FILE).read_bytes() == (int8 / WEIGHTS_FILE).read_bytes()
    for arguments, message in (
        ([str(int8), "--precision", "int8"], "is stored in int8 already"),
        ([str(float32)], "is a bundle already"),
        ([str(float32), "--precision", "int8", "--half"], "--half"),
    ):
        assert main(["import", arguments[0], str(tmp_path / "other"), *arguments[1:]]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "other").exists()


def test_damaged_bundles(bundles):
    directory = bundles[1].directory
    document, tensors = json.loads((directory / CONFIG_FILE).read_text()), load_file(directory / WEIGHTS_FILE)
    for names in (["silence"], ["head.in.weight"], "layers.0.attention.out.weight", []):
        write_document(directory, document | {"int8": names}, [WEIGHTS_FILE])
        with pytest.raises(CheckpointError, match="accepted: the matrices of the layers in int8"):
            SpeakerCheckpoint(directory)
    tensors["layers.1.feed_forward.up.weight.largest"][3] = 0.0
    save_file(tensors, directory / WEIGHTS_FILE)
    write_document(directory, document, [WEIGHTS_FILE])
    with pytest.raises(CheckpointError, match=r"layers.1.feed_forward.up.weight.largest has numbers that are not pos"):
        Diarizer(SpeakerCheckpoint(directory))
