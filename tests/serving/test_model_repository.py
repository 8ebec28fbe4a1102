"""Paths of the Triton models, and their batching delay."""

import re
from pathlib import Path

import pytest
from google.protobuf import text_format

from penstock.errors import PenstockError
from penstock.serving import model_repository
from penstock.serving.launch import ServerOptions
from penstock.serving.model_repository import copy_models, find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.triton_install import TritonInstall


@pytest.fixture
def repository(tmp_path) -> Path:
    (tmp_path / "models" / "asr").mkdir(parents=True)
    (tmp_path / "models" / "asr" / "config.pbtxt").touch()
    return tmp_path / "models"


def test_option_before_variable_before_the_bundled_one(repository):
    environment = {"PENSTOCK_MODEL_REPOSITORY": str(repository)}
    assert find_model_repository(str(repository), {"PENSTOCK_MODEL_REPOSITORY": "/nowhere"}) == repository
    assert find_model_repository(None, environment) == repository
    assert find_model_repository(None, {}) == Path(__file__).parents[2] / "model_repository"


def test_a_directory_without_the_models_is_rejected(tmp_path, monkeypatch):
    with pytest.raises(PenstockError, match=r"asr/config\.pbtxt is missing"):
        find_model_repository(str(tmp_path), {})
    monkeypatch.setattr(model_repository, "_BUNDLED", tmp_path)
    with pytest.raises(PenstockError, match=r"--model-repository or PENSTOCK_MODEL_REPOSITORY"):
        find_model_repository(None, {})


def delays_us(repository: Path) -> dict[str, int]:
    """The batching delay of each model that has one."""
    found = {}
    for path in repository.glob("*/config.pbtxt"):
        values = re.findall(r"max_queue_delay_microseconds: (\d+)", path.read_text())
        assert len(values) <= 1
        if values:
            found[path.parent.name] = int(values[0])
    return found


def test_requests_wait_at_the_first_member_and_only_for_each_other_at_the_next():
    delays = delays_us(find_model_repository())
    assert set(delays) == {"features", "encoder", "decoder", "speakers"}
    assert 0 < delays["encoder"] == delays["decoder"] == delays["speakers"] < delays["features"] <= 50_000


@pytest.mark.parametrize(
    ("delay_ms", "expected_us"), [(0, (0, 0)), (2, (2000, 2000)), (7, (7000, 3000)), (900, (900_000, 3000))]
)
def test_a_copy_differs_in_its_delays_alone(tmp_path, delay_ms, expected_us):
    committed = find_model_repository()
    before = delays_us(committed)
    copy = copy_models(committed, tmp_path / "models", delay_ms, {}, has_speakers=True)
    first, others = expected_us
    assert delays_us(copy) == {"features": first, "speakers": others, "encoder": others, "decoder": others}
    assert delays_us(committed) == before
    assert find_model_repository(str(copy), {}) == copy
    for path in committed.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            text, copied = (root.read_text() for root in (path, copy / path.relative_to(committed)))
            assert re.sub(r"(delay_microseconds:) \d+", r"\1", text) == re.sub(
                r"(delay_microseconds:) \d+", r"\1", copied
            )


@pytest.mark.parametrize(("delay_ms", "first_us"), [(None, 5000), (2, 2000), (40, 40_000)])
def test_on_a_gpu_requests_wait_shortly_and_at_the_first_model_only(tmp_path, delay_ms, first_us):
    copy = copy_models(find_model_repository(), tmp_path / "models", delay_ms, {"chunk_ms": "560"}, on_gpu=True)
    assert delays_us(copy) == {"features": first_us, "encoder": 0, "decoder": 0}


@pytest.mark.parametrize(("chunk_ms", "first_us"), [("80", 20_000), ("160", 40_000), ("1120", 40_000)])
def test_by_default_requests_wait_a_quarter_of_a_chunk_at_most(tmp_path, chunk_ms, first_us):
    copy = copy_models(find_model_repository(), tmp_path / "models", None, {"chunk_ms": chunk_ms})
    assert delays_us(copy) == {"features": first_us, "encoder": 3000, "decoder": 3000}


def test_polls_of_an_offline_model_wait_shortly(tmp_path):
    copy = copy_models(find_model_repository(), tmp_path / "models", None, {"windows": "file,long"})
    assert delays_us(copy) == {"features": 5000, "encoder": 3000, "decoder": 3000}


def test_information_becomes_parameters_of_the_ensembles(tmp_path):
    model_config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    information = {"model": 'an "odd" \\ näme', "languages": ""}
    committed = find_model_repository()
    copy = copy_models(committed, tmp_path / "models", None, information, has_speakers=True)
    assert delays_us(copy) == delays_us(committed)
    for path in copy.glob("*/config.pbtxt"):
        config = text_format.Parse(path.read_text(), model_config.ModelConfig())
        found = {name: value.string_value for name, value in config.parameters.items()}
        assert (found == information) == (path.parent.name in ("asr", "asr_batch", "asr_batch_speakers"))


@pytest.mark.parametrize("text", ["-1", "1001", "1.5", "soon"])
def test_a_wrong_delay_starts_nothing(tmp_path, text):
    options = ServerOptions(tmp_path, environment={"PENSTOCK_QUEUE_DELAY_MS": text})
    server = TritonServer(TritonInstall(Path("/bin/false")), options)
    with pytest.raises(PenstockError, match=f"PENSTOCK_QUEUE_DELAY_MS is '{text}'; accepted: integers from 0 to"):
        server.start()
    assert server.has_ended()


def test_every_stage_has_one_instance_on_any_host_and_takes_no_texts():
    """KIND_AUTO becomes one instance per GPU of the host."""
    model_config = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    stages = sorted(set((Path(__file__).parents[2] / "model_repository").glob("*/1/model.py")))
    assert [stage.parents[1].name for stage in stages] == ["decoder", "encoder", "features", "speakers"]
    for stage in stages:
        text = (stage.parents[1] / "config.pbtxt").read_text(encoding="utf-8")
        config = text_format.Parse(text, model_config.ModelConfig())
        (group,) = config.instance_group
        assert (group.count, group.kind, list(group.gpus)) == (1, group.KIND_MODEL, [])
        texts = [each.name for each in config.input if each.data_type == model_config.TYPE_STRING]
        assert not texts, "with numpy 2 they end the model's process"


def test_a_directory_without_the_speaker_model_cannot_serve_one(tmp_path):
    without = copy_models(find_model_repository(), tmp_path / "models", None, {})
    with pytest.raises(PenstockError, match="has no model speakers, which --speakers needs"):
        copy_models(without, tmp_path / "copy", None, {}, has_speakers=True)
