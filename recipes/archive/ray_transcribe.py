"""Transcribes a manifest or a list of audio on a Ray cluster, from files or an object store, to JSON lines or Parquet.

    python -m recipes.archive.ray_transcribe calls.jsonl --out calls.parquet --model MODEL --address auto

Needs the extra `archive` (docs/archives.md). Ray repeats the batches of a lost node, but only the driver writes rows,
and each file has one. Until the end they are in `OUT.partial`, with which `--resume` goes on. The driver imports
neither torch nor, but for Parquet, pyarrow.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
import ray
from ray import exceptions as errors

from penstock.errors import AudioError, ManifestError, OutputError, PenstockError, SettingError
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING
from penstock.reporting import check_writable
from penstock.runtime import prepare_process
from penstock.serving.settings import CONTEXT, MODEL, PRECISION
from penstock.transcription.manifest import parse_lines
from penstock.transcription.progress import Progress
from penstock.transcription.result_files import document

_STREAMS = {"cpu": 16, "cuda": 64}
_ASSUMED_S = 30.0  # of a file for which the manifest has no duration
_READ_AHEAD = 8  # files


def read_inputs(manifest: str) -> dict[str, float]:
    """Seconds by path or URL, without repetitions. ManifestError."""
    folder, inputs = os.path.dirname(manifest if "://" in manifest else os.path.abspath(manifest)), {}
    try:
        with fsspec.open(manifest, "rt", encoding="utf-8-sig") as file:
            for line in parse_lines(map(_as_json, file), manifest, folder):
                if line.audio.offset_s is not None or line.language or line.boosted_phrases:
                    raise ManifestError(f"{line.where}: parts, languages and phrases need `penstock transcribe`")
                line.audio.path.encode()  # a row is UTF-8
                inputs[line.audio.path] = line.stated_s or _ASSUMED_S
    except (OSError, ValueError, ImportError) as error:
        raise ManifestError(f"{manifest}: {error}") from error
    if not inputs:
        raise ManifestError(f"{manifest}: has no audio")
    return inputs


def _as_json(line: str) -> str:
    """A line of a manifest, also where it is a path alone."""
    path = line.strip()
    return line if not path or path.startswith("{") else json.dumps({"audio_filepath": path})


def batches(inputs: dict[str, float], batch_s: float, files: int, most_s: float) -> list[list[str]]:
    """Paths in batches of at least `batch_s` of audio, long files first.

    files: a batch goes on to this number as long as it has less than `most_s`.
    """
    found, audio_s = [[]], 0.0
    for path in sorted(inputs, key=lambda path: -inputs[path]):
        if found[-1] and audio_s >= batch_s and (len(found[-1]) >= files or audio_s >= most_s):
            found.append([])
            audio_s = 0.0
        found[-1].append(path)
        audio_s += inputs[path]
    return found


def fetch(path: str, place: str) -> str | AudioError:
    """The audio on this machine: a URL is read to a file at `place`, and again where a read is lost."""
    if "://" not in path:
        return path
    target = place + PurePosixPath(path.partition("?")[0]).suffix
    for wait_s in (0.5, 1.0, 2.0, 4.0, None):
        try:
            store, name = fsspec.url_to_fs(path)
            store.get_file(name, target)
            return target
        except Exception as error:  # noqa: BLE001  every object store has its own
            if wait_s is None or isinstance(error, FileNotFoundError | PermissionError | ImportError | ValueError):
                return AudioError(f"{path}: cannot be read: {type(error).__name__}: {error}")
            time.sleep(wait_s)


_LOADED: list[Any] = []  # the FileTranscriber of a process of Ray, which keeps it for its next batches


def recognize(paths: list[str], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each file, in any order, with one thread or one GPU. A download is on disk until its row is done."""
    if not _LOADED:
        _LOADED.append(_load(args))
    rows = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:

        def readable() -> Iterator[tuple[int, str]]:
            reads = (pool.submit(fetch, path, f"{folder}/{index}") for index, path in enumerate(paths))
            ahead = deque(islice(reads, _READ_AHEAD))
            for index, path in enumerate(paths):
                found = ahead.popleft().result()
                ahead.extend(islice(reads, 1))
                if isinstance(found, AudioError):
                    rows.append(_row({"audio": path, "text": ""}, str(found)))
                else:
                    yield index, found

        for index, (transcript,) in _LOADED[0].transcribe_numbered(readable()):
            opened, transcript.audio = transcript.audio, paths[index]
            rows.append(_row(document(transcript), (transcript.error or "").replace(opened, paths[index])))
            if opened != paths[index]:
                os.unlink(opened)
    return rows


def _load(args: argparse.Namespace) -> Any:
    from penstock.model.bundle import Checkpoint
    from penstock.model.resolve import resolve_or_bundled
    from penstock.transcription.files import FileTranscriber
    from penstock.transcription.offline import open_recognizer

    prepare_process(1)
    checkpoint, streams = Checkpoint(resolve_or_bundled(args.model)), _STREAMS[args.device]
    context, precision = (option.read({}, option.given(args)) for option in (CONTEXT, PRECISION))
    recognizer = open_recognizer(checkpoint, context, streams, args.device, DEFAULT_DECODING, None, None, precision)
    return FileTranscriber(recognizer, recognizer.chunk_samples({}))


def _row(result: dict[str, Any], error: str) -> dict[str, Any]:
    """The result of a file with `error`, an object or None. error: "CODE: message", or empty."""
    code, _, message = error.partition(": ")
    return result | {"error": {"code": code, "message": message} if error else None}


def _units(device: str) -> int:
    """Cores or GPUs of the cluster, some of which may come and go."""
    return int(ray.cluster_resources().get("GPU" if device == "cuda" else "CPU", 0))


def _recognized(task: Any, work: list[list[str]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows as batches are done by `task`, in any order; a batch that ends its process three times has none."""
    waiting, running = iter(work), set()
    lost = errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError
    while True:
        room = (args.workers or max(2 * _units(args.device), 1)) - len(running)
        running.update(task.remote(paths, args) for paths in islice(waiting, max(room, 0)))
        if not running:
            return
        (done,), _ = ray.wait(list(running))
        running.remove(done)
        with contextlib.suppress(*lost):
            yield from ray.get(done)


def transcribe(args: argparse.Namespace) -> int:
    """Writes a row for each file; returns how many have an error."""
    inputs, kept = read_inputs(args.manifest), Path(f"{args.out}.partial")
    done = _keep_rows(args.out, kept, args.resume, inputs)
    left = {path: audio_s for path, audio_s in inputs.items() if path not in done}
    failures = 0
    ray.init(address=args.address, log_to_driver=False, logging_level="ERROR")
    if not (units := _units(args.device)):
        raise SettingError(f"--device {args.device}: the cluster has none")
    args.model = os.path.abspath(args.model) if os.path.exists(args.model or "") else args.model
    with open(kept, "a", encoding="utf-8") as file, Progress(sys.stderr, len(left), sum(left.values())) as progress:

        def write(row: dict[str, Any]) -> int:
            if left.pop(row["audio"], None) is None:  # of a batch that was repeated
                return 0
            print(json.dumps(row, ensure_ascii=False), file=file, flush=True)
            progress.add_audio(row.get("audio_s", 0.0))
            progress.add_item()
            return row["error"] is not None

        workers = args.workers or units
        side_by_side = min(_STREAMS[args.device], -(-len(left) // workers))
        # Four batches or more for each worker: long files come first, and short ones fill the end.
        most_s = sum(left.values()) / (4 * workers)
        # One task for both passes: processes that are reused have its model.
        needs = {"num_gpus" if args.device == "cuda" else "num_cpus": 1}
        task = ray.remote(max_calls=0, max_retries=2, **needs)(recognize)
        for sizes in ((args.batch_s, side_by_side, most_s), (0.0, 1, 0.0)):  # then one by one, what ended a process
            if left:
                failures += sum(map(write, _recognized(task, batches(left, *sizes), args)))
        lost = "RUN_FAILED: its process ended each time; Ray's logs have the reason"
        failures += sum(write(_row({"audio": path, "text": ""}, lost)) for path in list(left))
        progress.clear()
        print(f"penstock: {progress.summary()}, {failures} failed; results are in {args.out}", file=sys.stderr)
    write_result(kept, args.out)
    return failures


def write_result(rows: Path, out: Path) -> None:
    """Moves rows to the result, JSON lines or Parquet."""
    if out.suffix != ".parquet":
        rows.replace(out)
        return
    import pyarrow
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    text = pyarrow.string()
    error = pyarrow.struct([("code", text), ("message", text)])
    schema = pyarrow.schema([("audio", text), ("text", text), ("error", error)])  # other columns are as their rows
    blocks = arrow_json.ReadOptions(block_size=1 << 28)  # bytes; no row is longer
    parquet.write_table(arrow_json.read_json(rows, blocks, arrow_json.ParseOptions(schema)), out)
    rows.unlink()


def _keep_rows(out: Path, kept: Path, is_resumed: bool, inputs: Collection[str]) -> set[str]:
    """Files that an earlier run recognized; their rows are in `kept` then. Failed ones of `inputs` are tried again."""
    if not is_resumed:
        for path in (path for path in (out, kept) if path.exists() and path.stat().st_size):
            raise OutputError(f"{path} exists; --resume goes on with its rows, or delete it")
        return set()
    done, new = set(), Path(f"{kept}.new")
    try:
        with open(new, "w", encoding="utf-8") as file:
            for row in _earlier_rows(out, kept):
                if row["error"] is None or row["audio"] not in inputs:
                    done.add(row["audio"])
                    print(json.dumps(row, ensure_ascii=False), file=file)
    except (ValueError, TypeError, KeyError) as error:
        new.unlink()
        raise OutputError(f"--resume: {kept if kept.exists() else out} has other lines than rows: {error}") from error
    new.replace(kept)
    return done


def _earlier_rows(out: Path, kept: Path) -> Iterator[dict[str, Any]]:
    """Rows of a run that ended early, without half a line at the end; else of one that ended."""
    if kept.exists() or (out.exists() and out.suffix != ".parquet"):
        with open(kept if kept.exists() else out, "rb") as file:
            yield from (json.loads(line) for line in file if line.endswith(b"\n"))
    elif out.exists():
        from pyarrow import parquet

        for batch in parquet.ParquetFile(out).iter_batches():
            yield from batch.to_pylist()


def main() -> int:
    """Command line; the exit status is 1 if a file failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", help="NeMo manifest, or list with one path or URL per line; a path or URL itself")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="result: .parquet, else JSON lines")
    parser.add_argument("--resume", action="store_true", help="keep rows of an earlier run; retry its failed files")
    parser.add_argument("--address", help="Ray cluster (RAY_ADDRESS, or a cluster of this machine alone)")
    parser.add_argument("--device", choices=_STREAMS, default="cpu", help="a task per core or per GPU (cpu)")
    parser.add_argument("--workers", type=int, metavar="N", help="at most N tasks at a time (all cores or GPUs)")
    parser.add_argument("--batch-s", type=float, default=600.0, metavar="S", help="least audio per task (600)")
    for option in (MODEL, CONTEXT, PRECISION):
        option.add_flag(parser)
    args = parser.parse_args()
    try:
        check_writable(args.out, True, "--out")
        if not args.batch_s > 0 or (args.workers is not None and args.workers < 1):
            raise SettingError(f"--batch-s is {args.batch_s}, --workers is {args.workers}; accepted: positive numbers")
        return 1 if transcribe(args) else 0
    except (PenstockError, errors.RayError, ConnectionError) as error:
        print(f"penstock: error: {str(error).strip().splitlines()[-1]}", file=sys.stderr)  # last of a worker's trace
        return 2


if __name__ == "__main__":
    sys.exit(main())
