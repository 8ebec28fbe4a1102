"""Values of `--model`: a bundle, a checkpoint (imported once). Hub ids and Transformers format: test_hub."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest

from penstock.cli import main
from penstock.errors import CheckpointError
from penstock.model import resolve
from penstock.model.bundle import FORMAT_VERSION, Checkpoint
from penstock.model.bundle_files import sha256_of
from penstock.model.nemo.importer import import_nemo
from penstock.model.resolve import cache_directory, resolve_model
from tests.helpers.golden import golden_case
from tests.helpers.nemo_files import WEIGHTS, Evil, nemo_members, saved, write_nemo

NEMO = golden_case("rnnt_hybrid").nemo_path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_imports(monkeypatch) -> None:
    def reject(*args: object, **kwargs: object) -> None:
        raise AssertionError("nothing is to be imported")

    monkeypatch.setattr(subprocess, "run", reject)


def test_a_bundle_is_used_where_it_is(tmp_path, monkeypatch, cache, no_imports):
    bundle = import_nemo(NEMO, tmp_path / "bundle").directory
    assert resolve_model(bundle) == bundle
    monkeypatch.chdir(tmp_path)
    assert resolve_model("bundle") == bundle  # absolute: a server's processes have another working directory
    assert not cache.exists()


def cached(cache: Path) -> Path:
    """Puts NEMO into the cache without a process."""
    return import_nemo(NEMO, cache / f"{sha256_of(NEMO)}-v{FORMAT_VERSION}").directory


def test_two_at_once_and_then_never_again_for_the_same_content(cache, tmp_path, monkeypatch):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(resolve_model, [NEMO, str(NEMO)])
    assert first == second == cache / f"{sha256_of(NEMO)}-v{FORMAT_VERSION}"
    Checkpoint(first)
    copy = tmp_path / "renamed.nemo"
    copy.write_bytes(NEMO.read_bytes())
    monkeypatch.setattr(subprocess, "run", None)  # any further import fails
    assert resolve_model(copy) == first
    assert [path.name for path in cache.iterdir()] == [first.name]


def test_a_damaged_cache_entry_is_made_again_without_python_files_that_lie_there(tmp_path, cache, monkeypatch):
    directory = cached(cache)
    (directory / "weights.safetensors").unlink()
    for name in ("yaml", "torch", "penstock"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    assert resolve_model(NEMO) == directory
    Checkpoint(directory)


def test_nothing_that_unpickles_is_loaded_here(cache):
    cached(cache)
    script = (
        "import sys; from penstock.model.resolve import resolve_model; resolve_model(sys.argv[1]);"
        "print(sorted(name for name in sys.modules if name.startswith('penstock.model.nemo')))"
    )
    finished = subprocess.run([sys.executable, "-c", script, str(NEMO)], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_an_import_that_finds_a_finished_bundle_leaves_it(tmp_path, monkeypatch):
    """The slower of two processes: the bundle appears while it converts."""
    target = tmp_path / "bundle"
    convert = import_nemo.__globals__["_convert"]

    def overtaken(*args: object) -> Path:
        monkeypatch.setitem(import_nemo.__globals__, "_convert", convert)
        import_nemo(NEMO, target)
        return convert(*args)

    monkeypatch.setitem(import_nemo.__globals__, "_convert", overtaken)
    with pytest.raises(CheckpointError, match="cannot be written"):
        import_nemo(NEMO, target)
    Checkpoint(target)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_malicious_file_is_rejected_and_not_cached(tmp_path, cache):
    marker = tmp_path / "marker"
    path = write_nemo(tmp_path / "a.nemo", nemo_members() | {WEIGHTS: saved({"joint.enc.bias": Evil(marker)})})
    with pytest.raises(CheckpointError, match=rf"^CHECKPOINT_INVALID: {path}: model_weights.ckpt: contains more"):
        resolve_model(path)
    assert not marker.exists()
    assert list(cache.iterdir()) == []


def test_a_killed_import_is_reported(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, -9, "", ""))
    with pytest.raises(CheckpointError, match="killed by signal 9"):
        resolve_model(NEMO)


@pytest.mark.parametrize("source", ["nothing-here", "a/b/c", "models/none.nemo", "", "../x/y", "org/name/", "/no/such"])
def test_anything_else_is_rejected_with_what_is_accepted(source, tmp_path, monkeypatch, no_imports):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)  # none of these may reach the hub
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(CheckpointError, match=r"accepted: a bundle or checkpoint|not a bundle: config.json") as caught:
        resolve_model(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"), [("a" * 300, "File name too long"), ("~no-such-user/m", "Could not determine home directory")]
)
def test_a_place_without_access_is_named(source, reason, no_imports):
    with pytest.raises(CheckpointError, match=f"{source}: cannot be read: {reason}"):
        resolve_model(source)


def test_a_file_or_directory_of_another_kind(tmp_path, no_imports):
    (tmp_path / "model.txt").write_bytes(b"x")
    with pytest.raises(
        CheckpointError, match=r"is not a model; accepted: a bundle or checkpoint directory, a \.nemo file, or a hub id"
    ):
        resolve_model(tmp_path / "model.txt")
    with pytest.raises(CheckpointError, match=r"not a bundle: config\.json"):
        resolve_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.ckpt", b"PK\x03\x04", r"model\.ckpt: is a checkpoint of PyTorch .*save_to"),
        ("model.ONNX", b"\x08\x07", "exported to ONNX"),
        ("model.zip", b"PK\x03\x04", "a zip archive; unpack it"),
        ("model.nemo", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer; `git lfs pull`"),
        ("folder/model_config.yaml", b"", r"folder: is an unpacked \.nemo file; .*tar -cf"),
        ("folder/adapter_config.json", b"{}", "folder: is a LoRA adapter; merge it"),
        ("folder/weights.safetensors", b"version https://git-lfs", r"weights\.safetensors: is a Git LFS pointer"),
    ],
)
def test_files_and_folders_of_other_kinds_are_named_with_what_to_do(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    source = path if path.parent == tmp_path else path.parent
    with pytest.raises(CheckpointError, match=message):
        resolve_model(source)
    assert main(["import", str(source), str(tmp_path / "bundle")]) == 1 and re.search(message, capsys.readouterr().err)


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("PENSTOCK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/penstock")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "penstock"


def test_int8_is_hinted_at_for_a_large_model_in_float32_by_default(tmp_path, monkeypatch):
    checkpoint = Checkpoint(resolve.BUNDLED_MODEL)
    assert resolve.int8_notice(checkpoint, "auto", "cpu") is None
    monkeypatch.setattr(resolve, "_LARGE_NUMBERS", 1_000_000)
    assert "--precision int8" in resolve.int8_notice(checkpoint, "auto", "cpu")
    for precision, device in (("float32", "cpu"), ("int8", "cpu"), ("auto", "cuda")):
        assert resolve.int8_notice(checkpoint, precision, device) is None
