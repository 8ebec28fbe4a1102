"""An archive on a Ray cluster of two nodes on this machine; the environment of `make archive-test` has Ray."""

import pytest

pytest.importorskip("ray", reason="extra `archive`")

import argparse
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from itertools import cycle
from pathlib import Path

import fsspec
import pyarrow.parquet
import ray
from ray.cluster_utils import Cluster

from penstock.errors import OutputError
from penstock.transcription.files import FileTranscript
from recipes.archive import ray_transcribe

ROOT = Path(__file__).parents[3]
AN4 = ROOT / "tests" / "data" / "an4"
MODEL = ROOT / "models" / "an4-rnnt-hybrid"


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_AUTH_MODE"] = "disabled"  # on this machine alone
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield found
    found.shutdown()


def start(cluster, manifest: Path, out: Path, *options: object) -> subprocess.Popen:
    words = [manifest, "--out", out, "--model", MODEL, "--address", cluster.address, *options]
    command = [sys.executable, "-m", "recipes.archive.ray_transcribe", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def write_manifest(path: Path, audio: list[str | Path]) -> Path:
    path.write_text("".join(json.dumps({"audio_filepath": str(each), "duration": 3}) + "\n" for each in audio))
    return path


def test_a_node_is_killed_in_the_middle(cluster, tmp_path):
    second = cluster.add_node(num_cpus=1)
    audio = [tmp_path / f"{number}-{path.name}" for number, path in zip(range(300), cycle((AN4 / "flac").iterdir()))]
    for path in audio:
        path.symlink_to(AN4 / "flac" / path.name.split("-", 1)[1])
    out = tmp_path / "rows.jsonl"
    run = start(cluster, write_manifest(tmp_path / "m.jsonl", audio + audio[:9]), out, "--batch-s", 18)
    kept = Path(f"{out}.partial")
    while run.poll() is None and not (kept.exists() and kept.read_bytes().count(b"\n") >= 60):
        threading.Event().wait(0.1)
    cluster.remove_node(second, allow_graceful=False)
    _, errors = run.communicate()
    assert run.returncode == 0, errors
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(row["audio"] for row in rows) == sorted(map(str, audio))
    assert len({(Path(row["audio"]).name.split("-", 1)[1], row["text"]) for row in rows}) == 6
    assert all(row["text"] and row["error"] is None for row in rows)


def test_batches_have_enough_audio_and_files():
    inputs = {"a": 5.0, "b": 90.0, "c": 60.0, "d": 50.0, "e": 10.0}
    assert ray_transcribe.batches(inputs, 100.0, 1, 0.0) == [["b", "c"], ["d", "e", "a"]]
    assert ray_transcribe.batches(inputs, 100.0, 3, 500.0) == [["b", "c", "d"], ["e", "a"]]
    assert ray_transcribe.batches(inputs, 50.0, 3, 80.0) == [["b"], ["c", "d"], ["e", "a"]], "long files do not pile up"
    assert ray_transcribe.batches(inputs, 0.0, 1, 0.0) == [["b"], ["c"], ["d"], ["e"], ["a"]]


class EveryThirdIsLost(http.server.SimpleHTTPRequestHandler):
    answers = cycle((False, False, True))

    def do_GET(self):
        if next(self.answers):
            self.send_error(503)
        else:
            super().do_GET()


def test_a_store_that_loses_reads_and_files_that_fail(cluster, tmp_path):
    """Each file as a path and as a URL."""
    for path in (AN4 / "flac").iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    handler = functools.partial(EveryThirdIsLost, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folders = [str(tmp_path), f"http://127.0.0.1:{server.server_port}"]
    names = [*(path.name for path in (AN4 / "flac").iterdir()), "broken.wav", "lacking.wav"]
    manifest = write_manifest(tmp_path / "m.jsonl", [f"{folder}/{name}" for folder in folders for name in names])
    run = start(cluster, manifest, tmp_path / "rows.parquet")
    _, errors = run.communicate()
    server.shutdown()
    assert run.returncode == 1 and " 4 failed" in errors, errors
    rows = {row["audio"]: row for row in pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()}
    assert len(rows) == 2 * len(names)
    for name in names:
        local, remote = (rows[f"{folder}/{name}"] for folder in folders)
        assert local["text"] == remote["text"] and (local["error"] is None) == bool(local["text"])
        for row in (local, remote) if local["error"] else ():
            assert row["error"]["code"] == "AUDIO_INVALID" and row["audio"] in row["error"]["message"]


def test_a_missing_model_ends_the_run(cluster, tmp_path):
    run = start(cluster, write_manifest(tmp_path / "m.jsonl", ["a.wav"]), tmp_path / "o", "--model", "/lacking/model")
    _, errors = run.communicate()
    assert run.returncode == 2 and "/lacking/model" in errors.splitlines()[-1], errors


def test_a_file_that_ends_its_process_and_a_run_that_goes_on(cluster, tmp_path, monkeypatch):
    def recognize(paths, args):
        if any("fatal" in path for path in paths):
            os._exit(1)
        return [{"audio": path, "text": "b", "error": None} for path in paths]

    monkeypatch.setattr(ray_transcribe, "recognize", recognize)
    out = tmp_path / "rows.jsonl"
    write_manifest(tmp_path / "m.jsonl", ["one.wav", "fatal.wav", "two.wav"])
    write_rows(Path(f"{out}.partial"), tmp_path, '{"audio": "ha')
    given = {"manifest": str(tmp_path / "m.jsonl"), "out": out, "resume": True, "address": cluster.address}
    args = argparse.Namespace(**given, workers=1, device="cpu", batch_s=600.0, model=None)
    assert ray_transcribe.transcribe(args) == 1
    ray.shutdown()
    rows = {Path(row["audio"]).stem: row for row in map(json.loads, out.read_text().splitlines())}
    assert {name: row["text"] for name, row in rows.items()} == {"one": "a", "two": "b", "fatal": ""}
    assert rows["fatal"]["error"]["code"] == "RUN_FAILED" and not Path(f"{out}.partial").exists()


def write_rows(path: Path, folder: Path, rest: str) -> None:
    """Rows of `one.wav` and, failed, of `two.wav`."""
    rows = {"one.wav": None, "two.wav": {"code": "AUDIO_INVALID", "message": "m"}}
    found = [{"audio": f"{folder / name}", "text": "a", "error": error} for name, error in rows.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in found) + rest)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_failed_files_of_an_ended_run_are_tried_again(name, tmp_path):
    out, kept = tmp_path / name, tmp_path / f"{name}.partial"
    inputs = [str(tmp_path / "one.wav"), str(tmp_path / "two.wav")]
    write_rows(kept, tmp_path, "")
    ray_transcribe.write_result(kept, out)
    assert not kept.exists() and ray_transcribe._keep_rows(out, kept, True, inputs) == {str(tmp_path / "one.wav")}
    assert [json.loads(line)["text"] for line in kept.read_text().splitlines()] == ["a"] and out.exists()
    with pytest.raises(OutputError, match="--resume"):
        ray_transcribe._keep_rows(out, kept, False, inputs)
    kept.write_text("3\n")
    with pytest.raises(OutputError, match="other lines than rows"):
        ray_transcribe._keep_rows(out, kept, True, inputs)
    write_rows(kept, tmp_path, "")
    assert len(ray_transcribe._keep_rows(out, kept, True, ())) == 2, (
        "no row of what is not in the list any more is lost"
    )


def test_what_was_read_from_a_store_is_on_disk_until_its_row_is_done(monkeypatch):
    store, on_disk = fsspec.filesystem("memory"), []
    urls = [f"memory://{number}.wav" for number in range(40)]
    for url in urls:
        store.pipe(url, b"audio")

    class Transcriber:
        def transcribe_numbered(self, files):
            for index, path in files:
                on_disk.append(len(list(Path(path).parent.iterdir())))
                yield index, [FileTranscript(path)]

    monkeypatch.setattr(ray_transcribe, "_LOADED", [Transcriber()])
    assert [row["audio"] for row in ray_transcribe.recognize(urls, argparse.Namespace())] == urls
    assert max(on_disk) <= 10


def test_the_driver_does_not_wait_for_large_packages():
    code = "import sys, recipes.archive.ray_transcribe; print({'torch', 'pandas', 'pyarrow'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "set()\n"
