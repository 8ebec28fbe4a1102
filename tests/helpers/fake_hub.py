"""A Hugging Face hub on the loopback interface with one repository, for `huggingface_hub` itself."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

COMMIT, OLDER = "c" * 40, "0" * 40


@dataclass
class FakeHub:
    """revisions: files by name, for each commit; requests: what was asked for; cut_after: bytes, once."""

    repository: str = "org/name"
    revisions: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    requests: list[str] = field(default_factory=list)
    cut_after: int | None = None

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
