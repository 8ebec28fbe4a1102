"""The pickled weights and the tokenizer of a .nemo: nothing is executed, every wrong tensor is named."""

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from penstock.errors import CheckpointError
from penstock.model.bundle import Checkpoint
from penstock.model.nemo import archive, weights
from penstock.model.nemo.importer import import_nemo
from penstock.model.nemo.weights import load_state_dict
from tests.helpers.nemo_files import (
    WEIGHTS,
    Evil,
    assert_rejected,
    changed_state,
    nemo_members,
    nemo_state,
    saved,
    tokenizer_member,
    write_nemo,
)


def torch_zip_of(data: bytes, name: str = "data.pkl") -> bytes:
    """A torch file whose pickle, with this name, is `data`."""
    source, target = zipfile.ZipFile(io.BytesIO(saved({"a": torch.zeros(1)}))), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as copy:
        for record in source.infolist():
            is_pickle = record.filename.endswith("data.pkl")
            renamed = record.filename.replace("data.pkl", name)
            copy.writestr(renamed, data if is_pickle else source.read(record))
    return target.getvalue()


@pytest.mark.parametrize("wrap", [saved, pickle.dumps, lambda evil: torch_zip_of(pickle.dumps(evil, protocol=2))])
def test_a_malicious_pickle_is_rejected_and_not_run(wrap, tmp_path):
    marker = tmp_path / "marker"
    payloads = {"state": {**nemo_state(), "joint.enc.bias": Evil(marker)}, "alone": Evil(marker)}
    for name, payload in payloads.items():
        directory = tmp_path / name
        directory.mkdir()
        path = write_nemo(directory / "a.nemo", nemo_members() | {WEIGHTS: wrap(payload)})
        assert_rejected(path, "contains more than tensors|not a file of torch.save's zip format")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Evil(marker)))
    assert marker.exists()  # the payload is live


@pytest.mark.parametrize(
    ("state", "named"), [({"a": Evil(Path("marker"))}, r"[\w.]+"), ({"a": Path("/")}, r"pathlib\.PosixPath")]
)
def test_an_error_names_the_class_and_never_advises_to_load_it(state, named, tmp_path):
    path = tmp_path / "model_weights.ckpt"
    torch.save(state, path)
    expected = rf"model_weights\.ckpt: contains more than tensors, or is broken: it names {named}, which is not loaded$"
    with pytest.raises(CheckpointError, match=expected):
        load_state_dict(path)


@pytest.mark.parametrize("name", ["data.pkl", "DATA.PKL"])  # torch finds both
@pytest.mark.parametrize(
    ("limit", "match"),
    [
        ("MAX_PICKLE_OPCODES", r"model_weights.ckpt: .* has more than 100 opcodes$"),
        ("MAX_PICKLE_BYTES", r"model_weights.ckpt: .* has more than 100 bytes$"),
    ],
)
def test_a_pickle_has_as_many_opcodes_as_tensors_need(name, limit, match, tmp_path, monkeypatch):
    path = tmp_path / "model_weights.ckpt"
    path.write_bytes(torch_zip_of(b"\x80\x02" + 120 * b"]" + b"}.", name))
    assert load_state_dict(path) == {}
    monkeypatch.setattr(weights, limit, 100)
    with pytest.raises(CheckpointError, match=match):
        load_state_dict(path)


def test_a_zip_file_has_as_many_records_as_tensors_need(tmp_path, monkeypatch):
    path = tmp_path / "model_weights.ckpt"
    path.write_bytes(saved({str(i): torch.zeros(1) for i in range(100)}))
    assert len(load_state_dict(path)) == 100
    monkeypatch.setattr(archive, "MAX_HEADER_BYTES", 5000)
    with pytest.raises(CheckpointError, match=r"a header claims \d+ bytes"):
        load_state_dict(path)


def test_a_pickle_in_the_older_torch_format(tmp_path):
    data = saved(nemo_state(), _use_new_zipfile_serialization=False)
    assert_rejected(write_nemo(tmp_path / "a.nemo", nemo_members() | {WEIGHTS: data}), "zip format")


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ([torch.zeros(2)], "contains a list; accepted: a mapping of tensors"),
        (torch.zeros(2), "contains a Tensor; accepted: a mapping of tensors"),
        ({"state_dict": nemo_state()}, "'state_dict' is a OrderedDict; accepted: named tensors"),
        ({3: torch.zeros(2)}, "3 is a Tensor; accepted: named tensors"),
        ({"joint.enc.bias": "text"}, "'joint.enc.bias' is a str"),
        ({"joint.enc.bias": torch.zeros(20).to_sparse()}, "tensor joint.enc.bias is torch.sparse_coo"),
        ({"joint.enc.bias": torch.zeros(1).expand(20)}, "joint.enc.bias claims more elements"),
    ],
)
def test_other_things_than_dense_tensors(state, match, tmp_path):
    assert_rejected(write_nemo(tmp_path / "a.nemo", nemo_members() | {WEIGHTS: saved(state)}), match)


@pytest.mark.parametrize(
    ("name", "tensor", "match"),
    [
        ("joint.enc.bias", None, r"joint.enc.bias is missing, expected with shape \(20,\)"),
        ("ctc_decoder.decoder_layers.0.weight", None, "ctc_decoder.decoder_layers.0.weight is missing"),
        ("joint.enc.bias", torch.zeros(21), r"joint.enc.bias is torch.float32 \(21,\), expected floating \(20,\)"),
        ("joint.enc.bias", torch.zeros(20, dtype=torch.int32), r"joint.enc.bias is torch.int32 \(20,\)"),
        ("encoder.layers.0.conv.depthwise_conv.weight", torch.zeros(24, 9), r"depthwise_conv.weight is .*\(24, 1, 9\)"),
        ("preprocessor.featurizer.fb", torch.zeros(1, 64, 257), r"featurizer.fb is .*expected floating \(1, 80, 257\)"),
        ("joint.enc.bias", torch.full((20,), float("nan")), "joint.encoder.bias is not finite"),
        ("encoder.layers.2.norm_out.weight", torch.zeros(24), "encoder.layers.2.norm_out.weight is not expected"),
    ],
)
def test_wrong_tensors_are_named(name, tensor, match, tmp_path):
    def change(state: dict) -> None:
        state.pop(name, None)
        if tensor is not None:
            state[name] = tensor

    assert_rejected(changed_state(tmp_path / "a.nemo", change), match)


def test_batch_norm_statistics_are_needed_but_not_their_counter(tmp_path):
    name = "encoder.layers.0.conv.batch_norm."
    good = changed_state(tmp_path / "g.nemo", lambda s: s.pop(f"{name}num_batches_tracked"), "tdt_hybrid")
    import_nemo(good, tmp_path / "good")
    (tmp_path / "bad").mkdir()
    bad = changed_state(tmp_path / "bad" / "a.nemo", lambda s: s.pop(f"{name}running_var"), "tdt_hybrid")
    assert_rejected(bad, "batch_norm.running_var is missing")


def test_values_beyond_float16_are_rejected_only_there(tmp_path):
    path = changed_state(tmp_path / "a.nemo", lambda state: state["joint.enc.bias"].fill_(1e6))
    assert isinstance(import_nemo(path, tmp_path / "full"), Checkpoint)
    with pytest.raises(CheckpointError, match=r"joint\.encoder\.bias has values beyond the range of float16"):
        import_nemo(path, tmp_path / "half", half=True)


def test_a_compressed_record(tmp_path):
    source, target = zipfile.ZipFile(io.BytesIO(saved(nemo_state()))), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for record in source.infolist():
            copy.writestr(record.filename, source.read(record))
    assert_rejected(
        write_nemo(tmp_path / "a.nemo", nemo_members() | {WEIGHTS: target.getvalue()}), "is compressed; accepted"
    )


@pytest.mark.parametrize("kept", [0.2, 0.9, 0.999])
def test_truncated_weights(kept, tmp_path):
    data = nemo_members()[WEIGHTS]
    members = nemo_members() | {WEIGHTS: data[: int(len(data) * kept)]}
    assert_rejected(write_nemo(tmp_path / "a.nemo", members), "or truncated")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not a SentencePiece model: is empty"),
        (b"not a model at all", "not a SentencePiece model"),
        (nemo_members("tdt_unsorted")[tokenizer_member("tdt_unsorted")], "has 300 pieces, expected 48"),
    ],
)
def test_wrong_tokenizers(data, match, tmp_path):
    name = tokenizer_member()
    assert_rejected(write_nemo(tmp_path / "a.nemo", nemo_members() | {name: data}), match)
