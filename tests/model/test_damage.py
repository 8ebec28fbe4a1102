"""Damaged files: each is rejected by name, or what is read of it is what it was."""

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from torch.serialization import set_crc32_options

from penstock import StreamingRecognizer
from penstock.cli import main
from penstock.commands import serve
from penstock.errors import CheckpointError, StreamError
from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.bundle_files import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from penstock.model.nemo.importer import import_nemo
from penstock.serving.settings import ServeOptions, Settings
from penstock.transcription.offline import OfflineRecognizer
from tests.helpers.golden import AN4
from tests.helpers.nemo_files import CONFIG, changed_state, nemo_members, tokenizer_member, write_nemo

FILES = (WEIGHTS_FILE, TOKENIZER_FILE, CONFIG_FILE)


def damage(path: Path, seed: int, may_change: Callable[[int, int], bool] = lambda begin, end: True) -> str:
    """Flips a bit, zeroes a block, cuts the end off or writes random bytes; may_change: which range of bytes."""
    random, data = Random(seed), bytearray(path.read_bytes())
    kind = ("bit", "zeros", "cut", "bytes")[seed % 4]
    while True:
        begin = random.randrange(len(data))
        end = {"bit": begin + 1, "cut": len(data)}.get(kind, min(begin + random.choice([1, 16, 512]), len(data)))
        if kind == "cut" or may_change(begin, end):
            break
    changed = {"zeros": bytes(end - begin), "cut": b""}.get(kind, random.randbytes(end - begin))
    data[begin:end] = bytes([data[begin] ^ 1 << random.randrange(8)]) if kind == "bit" else changed
    path.write_bytes(data)
    return kind


def contents(directory: Path) -> list[object]:
    """All that decides the words of a bundle, but for what it was imported from."""
    return [Checkpoint(directory).config, *((directory / name).read_bytes() for name in FILES[:2])]


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(8, 128))]
)
def test_a_nemo_file(golden_bundle, tmp_path, seed):
    """The configuration and the tokenizer have no checksum there: what is in their place is not seen."""
    path = write_nemo(tmp_path / "a.nemo", nemo_members())
    with tarfile.open(path) as tar:
        others = [tar.getmember(name) for name in (CONFIG, tokenizer_member())]
    spans = [(member.offset_data, member.offset_data + member.size) for member in others]
    damage(path, seed, lambda begin, end: all(end <= first or last <= begin for first, last in spans))
    try:
        found = import_nemo(path, tmp_path / "bundle")
    except CheckpointError as error:
        assert str(path) in error.message
    else:
        assert contents(found.directory) == contents(golden_bundle("rnnt_hybrid").directory)


def test_a_nemo_file_that_was_saved_without_checksums(golden_bundle, tmp_path, caplog):
    set_crc32_options(False)
    try:
        path = changed_state(tmp_path / "a.nemo", lambda state: None)
    finally:
        set_crc32_options(True)
    found = import_nemo(path, tmp_path / "bundle")
    assert contents(found.directory) == contents(golden_bundle("rnnt_hybrid").directory)
    assert "saved without checksums" in caplog.text


@pytest.mark.parametrize("name", FILES)
def test_a_bundle(golden_bundle, tmp_path, name):
    source, rejected = golden_bundle("rnnt_hybrid").directory, 0
    for seed in range(32):
        shutil.copytree(source, tmp_path / "bundle", dirs_exist_ok=True)
        damage(tmp_path / "bundle" / name, seed)
        try:
            found = contents(tmp_path / "bundle")
        except CheckpointError as error:
            assert name in error.message
            rejected += 1
        else:
            assert found == contents(source), seed
    assert rejected > 24


@pytest.mark.parametrize("name", FILES)
def test_everything_that_opens_a_bundle_rejects_a_damaged_one(golden_bundle, tmp_path, name, capsys):
    bundle = tmp_path / "bundle"
    shutil.copytree(golden_bundle("rnnt_hybrid").directory, bundle)
    data = (bundle / name).read_bytes()
    place = data.index(b'preemphasis": 0.97') + 17 if name == CONFIG_FILE else len(data) // 2
    (bundle / name).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    model, audio, out = ["--model", str(bundle)], str(next(AN4.rglob("*.flac"))), str(tmp_path / "out")
    for command in (
        ["transcribe", *model, audio],
        ["evaluate", *model, str(AN4 / "manifest.jsonl")],
        ["import", str(bundle), out, "--precision", "int8"],
        ["adapt", *model, "--text", __file__, "--out", out],
        ["graph", "build", *model, "--lm", __file__, "--out", f"{out}.safetensors"],
    ):
        assert main(command) != 0
        assert f"CHECKPOINT_INVALID: {bundle / name}: " in capsys.readouterr().err
    for opened in (
        lambda: StreamingRecognizer(bundle),
        lambda: OfflineRecognizer(bundle),
        lambda: serve._load_served(ServeOptions(model=str(bundle))),
        lambda: Settings.from_environment({"PENSTOCK_MODEL": str(bundle)}),
    ):
        with pytest.raises(CheckpointError, match=name):
            opened()


def test_numbers_that_are_not_finite_are_no_text(golden_bundle, tmp_path):
    source, tokenizer = golden_bundle("rnnt_hybrid"), golden_bundle("rnnt_hybrid").tokenizer_path.read_bytes()
    tensors = source.tensors()
    tensors["encoder.layers.1.norm_out.weight"].fill_(3e38)
    overflows = write_checkpoint(tmp_path / "overflows", source.config, tensors, tokenizer, {})
    recognizer = StreamingRecognizer(overflows.directory)
    for decoder in ("greedy", "ctc", "ctc_beam"):
        stream = recognizer.open_stream(options={"decoder": decoder})
        with pytest.raises(StreamError, match="STREAM_LOST: the model computes NaN for this audio"):
            stream.finish(np.sin(np.arange(16000.0)))
    tensors["joint.output.bias"][3] = np.nan
    broken = write_checkpoint(tmp_path / "broken", source.config, tensors, tokenizer, {})
    with pytest.raises(CheckpointError, match=r"tensor joint.output.bias is not finite"):
        StreamingRecognizer(broken.directory)
