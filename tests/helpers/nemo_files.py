"""Builds .nemo files for tests from the parts of a golden one, whole or spoilt in one place."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml

from penstock.errors import CheckpointError
from penstock.model.nemo.importer import import_nemo
from tests.helpers.golden import GOLDEN

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"


@cache
def _members(case: str) -> dict[str, bytes]:
    data = (GOLDEN / f"{case}.nemo").read_bytes()
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return {member.name.removeprefix("./"): tar.extractfile(member).read() for member in tar if member.isfile()}


def nemo_members(case: str = "rnnt_hybrid") -> dict[str, bytes]:
    """Name -> bytes of every file in a golden .nemo."""
    return dict(_members(case))


def nemo_state(case: str = "rnnt_hybrid") -> dict[str, torch.Tensor]:
    """State dict of the golden model."""
    return torch.load(io.BytesIO(_members(case)[WEIGHTS]), weights_only=True)


def saved(state: object, **options: object) -> bytes:
    """Bytes that torch.save writes."""
    buffer = io.BytesIO()
    torch.save(state, buffer, **options)
    return buffer.getvalue()


def tokenizer_member(case: str = "rnnt_hybrid") -> str:
    """Name of the SentencePiece model."""
    return next(name for name in _members(case) if name.endswith("tokenizer.model"))


def write_nemo(path: Path, members: dict[str, bytes], extra: tuple[tarfile.TarInfo, ...] = ()) -> Path:
    """A plain tar of `members`, then the headers `extra` without data."""
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for info in extra:
            tar.addfile(info)
    return path


def changed_config(path: Path, change: Callable[[dict], object], case: str = "rnnt_hybrid") -> Path:
    """A .nemo whose configuration `change` has modified in place."""
    members = nemo_members(case)
    document = yaml.safe_load(members[CONFIG])
    change(document)
    return write_nemo(path, members | {CONFIG: yaml.safe_dump(document).encode()})


def changed_state(path: Path, change: Callable[[dict], object], case: str = "rnnt_hybrid") -> Path:
    """A .nemo whose state dict `change` has modified in place."""
    state = nemo_state(case)
    change(state)
    return write_nemo(path, nemo_members(case) | {WEIGHTS: saved(state)})


def write_ctc_nemo(path: Path, change: Callable[[dict], object] = lambda decoder: None) -> Path:
    """A .nemo of a CTC model: encoder and CTC head of the golden hybrid; `change` modifies the head's configuration."""
    members, state = nemo_members(), nemo_state()
    document = yaml.safe_load(members[CONFIG])
    document["target"] = "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE"
    document["decoder"] = document.pop("aux_ctc")["decoder"] | {"num_classes": 48}
    change(document["decoder"])
    for name in ("joint", "decoding", "loss", "model_defaults"):
        document.pop(name, None)
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(("decoder.", "joint."))}
    kept = {name.replace("ctc_decoder.", "decoder."): tensor for name, tensor in kept.items()}
    return write_nemo(path, members | {CONFIG: yaml.safe_dump(document).encode(), WEIGHTS: saved(kept)})


class Evil:
    """Touches a file when unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (os.system, (f"touch {self.marker}",))


def assert_rejected(path: Path, match: str) -> None:
    """Checks that importing fails with the file's name and `match` and leaves nothing behind."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(CheckpointError, match=match) as caught:
        import_nemo(path, path.parent / "bundle")
    assert str(caught.value).startswith(f"CHECKPOINT_INVALID: {path}: ")
    assert sorted(path.parent.rglob("*")) == before
