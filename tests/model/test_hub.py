"""Checkpoints from the hub: which files, which revision, what the cache saves, and what can go wrong."""

import errno
import hashlib
import json
import logging
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from penstock.cli import main
from penstock.errors import ErrorCode, ModelNotFoundError, OutputError
from penstock.model.bundle import Checkpoint
from penstock.model.hub import HubSource, fetch, parse_source
from penstock.model.resolve import resolve_model
from tests.helpers.transformers_files import write_same_as_nemo, write_transformers

SOURCE = HubSource("org/name", None)


COMMIT, OLDER = "c" * 40, "0" * 40


@dataclass
class FakeHub:
    """revisions: files by name, for each commit; requests: what was asked for; cut_after: bytes, once.

    fault: answers in place of the hub where it returns True.
    """

    repository: str = "org/name"
    revisions: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    requests: list[str] = field(default_factory=list)
    cut_after: int | None = None
    fault: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False

    def downloads(self) -> list[str]:
        """Files that were sent, with the part that was asked for."""
        return [line.removeprefix("GET ") for line in self.requests if line.startswith("GET ") and "api" not in line]


@contextmanager
def running(hub: FakeHub, patch: pytest.MonkeyPatch, cache: str) -> Iterator[FakeHub]:
    """Serves `hub`; `huggingface_hub` in this process and in its children uses it, with an empty cache."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    patch.setenv("HF_ENDPOINT", url)
    patch.setenv("HF_HUB_CACHE", cache)
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", cache)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        if self.hub.fault(self):
            return None
        path = self.path.partition("?")[0]
        match = re.fullmatch(r"/api/models/(\w+/\w+)/(revision|tree)/(\w+)", path)
        file = re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/(.+)", path)
        found = match or file
        part = self.headers.get("Range", "")
        self.hub.requests.append(f"{self.command} {'api ' if match else ''}{file[3] if file else path}{part}")
        if found is None or found[1] != self.hub.repository:
            return self._fail("RepoNotFound")
        commit = self.hub.branches.get((match and match[3]) or (file and file[2]), (match and match[3]) or file[2])
        if commit not in self.hub.revisions:
            return self._fail("RevisionNotFound")
        files = self.hub.revisions[commit]
        if match is None:
            return self._send_file(files.get(file[3]), commit, part)
        if match[2] == "revision":
            return self._send_json({"id": self.hub.repository, "sha": commit, "siblings": []})
        return self._send_json(
            [{"type": "file", "path": n, "size": len(d), "oid": _digest(d)} for n, d in sorted(files.items())]
        )

    def _fail(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, document: object) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_file(self, data: bytes | None, commit: str, part: str) -> None:
        if data is None:
            return self._fail("EntryNotFound")
        start = int(re.sub(r"\D", "", part) or 0)
        self.send_response(206 if part else 200)
        self.send_header("ETag", f'"{_digest(data)}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(data) - start))
        if part:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.cut_after is not None and len(data) > self.hub.cut_after:
            data, self.hub.cut_after = data[: self.hub.cut_after], None
            self.close_connection = True
        self.wfile.write(data[start:])


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


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


def silent(handler) -> bool:
    handler.rfile.read(1)  # returns when the client closes the connection
    return True


def sends(status: int, body: bytes = b"", **headers: str):
    def answer(handler) -> bool:
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body if handler.command == "GET" else b"")
        return True

    return answer


FILE = "model.safetensors"


@pytest.mark.parametrize(
    ("fault", "place", "match"),
    [
        (silent, "/api/", "SilentHubError: 127.0.0.1:.* has sent nothing for 1 s"),
        (silent, "/resolve/", "SilentHubError"),
        (sends(200, b"a part", **{"Content-Length": "100000"}), f"GET {FILE}", "SilentHubError"),
        (sends(401), "/api/", "401"),
        (sends(429, Retry_After="3600"), "/api/", "429"),
        (sends(200, b"<html>log in</html>"), "/", "JSONDecodeError"),
        (sends(302, Location="/login"), "/api/", "RepositoryNotFound"),
        (sends(200, b"[]"), "/api/", "TypeError"),
        (sends(200, b"<html>log in</html>"), "/resolve/", "X-Repo-Commit"),
        (sends(200, b"short"), f"GET {FILE}", "size"),
        (lambda handler: not handler.connection.shutdown(socket.SHUT_RDWR), "/api/", "RemoteProtocolError"),
    ],
)
def test_a_hub_that_answers_wrongly_or_not_at_all(hub, monkeypatch, caplog, fault, place, match):
    monkeypatch.setattr("penstock.model.hub.SILENCE_S", 1.0)
    method, _, path = place.rpartition(" ")
    hub.fault = lambda handler: path in handler.path and method in handler.command and fault(handler)
    with pytest.raises(ModelNotFoundError, match=match) as caught:
        fetch(SOURCE)
    assert "HF_HUB_OFFLINE=1 takes what is cached, HF_ENDPOINT" in caught.value.message
    assert "fetching org/name from 127.0.0.1:" in caplog.text


def test_a_disk_that_is_full_after_all(hub, monkeypatch):
    def fails(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fails)
    with pytest.raises(OutputError, match="org/name: the download has filled the disk"):
        fetch(SOURCE)


def test_the_command_records_repository_and_commit(hub, tmp_path, capsys):
    assert main(["import", "org/name@main", str(tmp_path / "a")]) == 0
    assert main(["import", "org/name", str(tmp_path / "b"), "--format", "nemo"]) == 0
    ours, theirs = (Checkpoint(tmp_path / name) for name in "ab")
    assert ours.source.items() >= {"hub": "org/name", "commit": COMMIT}.items()
    assert theirs.source.items() >= {"hub": "org/name", "commit": COMMIT, "file": "name.nemo"}.items()
    assert ours.config == theirs.config
    assert main(["import", str(tmp_path / "a"), str(tmp_path / "c"), "--format", "nemo"]) == 1
    assert "SETTING_INVALID: --format: only a repository on the hub" in capsys.readouterr().err


def test_a_model_of_the_hub_is_imported_once_per_commit(hub, tmp_path, monkeypatch):
    directory = resolve_model(f"org/name@{COMMIT}")
    Checkpoint(directory)
    assert directory.parent == tmp_path / "cache"
    offline(monkeypatch)
    monkeypatch.setattr("subprocess.run", None)  # any further import fails
    assert resolve_model(f"org/name@{COMMIT}") == directory


def test_a_broken_checkpoint_of_the_hub_is_named(hub, files, tmp_path, capsys):
    hub.revisions[COMMIT] = files | {"tokenizer.json": b"{}"}
    assert main(["import", "org/name", str(tmp_path / "a")]) == 1
    assert "CHECKPOINT_INVALID: " in (error := capsys.readouterr().err) and "tokenizer.json: " in error


def test_a_directory_in_transformers_format_is_imported_once_per_content(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    source = write_transformers(tmp_path / "hf")
    directory = resolve_model(source)
    assert Path(directory).parent == tmp_path / "cache"
    monkeypatch.setattr("subprocess.run", None)
    assert resolve_model(source) == directory
