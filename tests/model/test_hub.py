"""Checkpoints from the hub: which files, which revision, what the cache saves, and what can go wrong."""

import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from penstock.commands.import_model import main
from penstock.errors import ErrorCode, ModelNotFoundError, OutputError
from penstock.model.bundle import Checkpoint
from penstock.model.hub import HubSource, fetch, parse_source
from penstock.model.resolve import resolve_model
from tests.helpers.fake_hub import COMMIT, OLDER, FakeHub, running
from tests.helpers.transformers_files import write_same_as_nemo, write_transformers

SOURCE = HubSource("org/name", None)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A repository with both formats and what else lies in one."""
    folder = tmp_path_factory.mktemp("repository")
    checkpoint = write_transformers(folder / "hf")
    found = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    found["name.nemo"] = write_same_as_nemo(folder / "name.nemo").read_bytes()
    return found | {"README.md": b"a model", "pytorch_model.bin": b"a pickle"}


@pytest.fixture
def hub(files, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    older = {name: data for name, data in files.items() if name.endswith((".nemo", ".md"))}
    with running(FakeHub(revisions={COMMIT: files, OLDER: older}), monkeypatch, str(tmp_path / "hub")) as hub:
        yield hub


def offline(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubSource("org/name", None)),
        ("nvidia/a-b_c.0.6b@main", HubSource("nvidia/a-b_c.0.6b", "main")),
        ("org/name@refs/pr/3", HubSource("org/name", "refs/pr/3")),
        ("org/name@", None),
        ("org/name/more", None),
        ("org/name.nemo", None),
        ("../x/y", None),
        ("name", None),
    ],
)
def test_what_a_hub_id_is(text, expected):
    assert parse_source(text) == expected
    assert expected is None or str(expected) == text


def test_transformers_format_is_preferred_and_only_its_files_are_fetched(hub, caplog):
    with caplog.at_level(logging.WARNING, logger="penstock"):
        fetched = fetch(SOURCE)
    assert (fetched.format, fetched.commit) == ("transformers", COMMIT)
    wanted = {"config.json", "processor_config.json", "tokenizer.json", "model.safetensors", "README.md"}
    assert {path.name for path in fetched.path.iterdir()} == wanted
    assert set(hub.downloads()) == wanted
    assert f"org/name names no revision, so the model may change; this one is org/name@{COMMIT}" in caplog.text


@pytest.mark.parametrize(
    ("revision", "wanted", "commit"), [(None, "nemo", COMMIT), (OLDER, None, OLDER)], ids=["asked for", "only one"]
)
def test_a_nemo_file(hub, revision, wanted, commit):
    fetched = fetch(HubSource("org/name", revision), wanted)
    assert (fetched.format, fetched.path.name, fetched.commit) == ("nemo", "name.nemo", commit)
    assert "name.nemo" in hub.downloads() and "model.safetensors" not in hub.downloads()


def test_a_model_of_another_type_gives_way_to_its_nemo_file(hub, files):
    hub.revisions[COMMIT] = files | {"config.json": b'{"model_type": "parakeet_aed"}'}
    assert fetch(SOURCE).format == "nemo"


def test_a_cut_transfer_is_resumed(hub, files, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what arrived of an unfinished block is lost
    hub.cut_after = 20_000
    fetched = fetch(HubSource("org/name", COMMIT))
    assert (fetched.path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert any("bytes=20000-" in line for line in hub.downloads())


def test_a_second_start_asks_for_the_revision_alone_and_for_a_commit_nothing(hub):
    fetch(SOURCE)
    hub.requests.clear()
    fetch(SOURCE)
    assert hub.downloads() == []
    hub.requests.clear()
    fetch(HubSource("org/name", COMMIT))
    assert hub.requests == []


@pytest.mark.parametrize("wanted", [None, "nemo"])
@pytest.mark.parametrize("revision", [None, COMMIT])
def test_offline_the_cache_answers(hub, monkeypatch, wanted, revision):
    expected = fetch(SOURCE, wanted)
    hub.requests.clear()
    offline(monkeypatch)
    assert fetch(HubSource("org/name", revision), wanted) == expected
    assert hub.requests == []


def test_a_server_that_is_down_is_like_offline(hub, monkeypatch):
    expected = fetch(SOURCE)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch(SOURCE) == expected


def test_offline_without_a_snapshot(hub, monkeypatch):
    offline(monkeypatch)
    with pytest.raises(
        ModelNotFoundError, match=r"org/name: no such file or directory, and it cannot be fetched"
    ) as caught:
        fetch(SOURCE)
    assert "no network, and the hub's cache does not have it" in str(caught.value)


def test_offline_with_the_other_format(hub, monkeypatch):
    fetch(SOURCE, "nemo")
    offline(monkeypatch)
    with pytest.raises(ModelNotFoundError):
        fetch(SOURCE, "transformers")


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (HubSource("org/other", None), "RepositoryNotFoundError"),
        (HubSource("org/name", "gone"), "RevisionNotFoundError"),
        (HubSource("org/name", "f" * 40), "RevisionNotFoundError"),
    ],
)
def test_what_is_not_there(hub, source, match):
    with pytest.raises(ModelNotFoundError, match=rf"^MODEL_NOT_FOUND: {source}: .*{match}") as caught:
        fetch(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "wanted", "match"),
    [
        ({"config.json": b'{"model_type": "parakeet_aed"}'}, None, "found: none; .*found: parakeet_aed"),
        ({"config.json": b'{"model_type": "whisper"}'}, "transformers", "found: whisper"),
        ({"second.nemo": b"", "first.nemo": b""}, "nemo", "one .nemo file; found: first.nemo, second.nemo"),
        ({}, "nemo", "one .nemo file; found: none"),
    ],
)
def test_a_repository_without_a_checkpoint(hub, files, changed, wanted, match):
    hub.revisions[COMMIT] = {name: data for name, data in files.items() if not name.endswith(".nemo")} | changed
    with pytest.raises(ModelNotFoundError, match=match):
        fetch(SOURCE, wanted)


def test_too_little_disk(hub, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))
    with pytest.raises(OutputError, match=r"org/name: the download has 0 MB, and .* has 0 MB free") as caught:
        fetch(SOURCE)
    assert caught.value.code is ErrorCode.OUTPUT_FAILED
    assert "model.safetensors" not in hub.downloads()


def test_the_command_records_repository_and_commit(hub, tmp_path, capsys):
    assert main(["org/name@main", str(tmp_path / "a")]) == 0
    assert main(["org/name", str(tmp_path / "b"), "--format", "nemo"]) == 0
    ours, theirs = (Checkpoint(tmp_path / name) for name in "ab")
    assert ours.source.items() >= {"hub": "org/name", "commit": COMMIT}.items()
    assert theirs.source.items() >= {"hub": "org/name", "commit": COMMIT, "file": "name.nemo"}.items()
    assert ours.config == theirs.config
    assert main([str(tmp_path / "a"), str(tmp_path / "c"), "--format", "nemo"]) == 1
    assert "SETTING_INVALID: --format: only a repository on the hub" in capsys.readouterr().err


def test_a_model_of_the_hub_is_imported_once_per_commit(hub, tmp_path, monkeypatch):
    directory = resolve_model(f"org/name@{COMMIT}")
    Checkpoint(directory).verify()
    assert directory.parent == tmp_path / "cache"
    offline(monkeypatch)
    monkeypatch.setattr("subprocess.run", None)  # any further import fails
    assert resolve_model(f"org/name@{COMMIT}") == directory


def test_a_broken_checkpoint_of_the_hub_is_named(hub, files, tmp_path, capsys):
    hub.revisions[COMMIT] = files | {"tokenizer.json": b"{}"}
    assert main(["org/name", str(tmp_path / "a")]) == 1
    assert "CHECKPOINT_INVALID: " in (error := capsys.readouterr().err) and "tokenizer.json: " in error


def test_a_directory_in_transformers_format_is_imported_once_per_content(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    source = write_transformers(tmp_path / "hf")
    directory = resolve_model(source)
    assert Path(directory).parent == tmp_path / "cache"
    monkeypatch.setattr("subprocess.run", None)
    assert resolve_model(source) == directory
