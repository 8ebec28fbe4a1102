"""Shards: the files of a list that each of N machines takes. Each machine reads the whole list and finds the same."""

import hashlib
import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import SettingError, shown

SHARD_HELP = "take share I of N of the files; auto: that of a Slurm array task, or of a pod of an Indexed Job"
_OF_SLURM = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP")
_OF_JOB = ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS")


@dataclass(frozen=True)
class Shard:
    """Share `number`, from 1, of `count`."""

    number: int = 1
    count: int = 1

    def choose(self, files: Sequence[str], audio_s: Sequence[float | None]) -> list[int]:
        """Indices of the shard, in order; all parts of a file are in one shard.

        files: names that are equal on all machines. Where all durations are known, each file, the longest first, goes
        to the shard with the least audio; else the hash of its name decides, whatever other files there are.
        """
        totals: dict[str, float] = {}
        for file, seconds in zip(files, audio_s, strict=True):
            totals[file] = totals.get(file, 0.0) + (seconds or 0.0)
        shards = {file: _hash(file) % self.count for file in totals}
        if None not in audio_s:
            loads = [(0.0, shard) for shard in range(self.count)]
            for file in sorted(totals, key=lambda file: (-totals[file], _hash(file))):
                load_s, shards[file] = loads[0]
                heapq.heapreplace(loads, (load_s + totals[file], shards[file]))
        return [index for index, file in enumerate(files) if shards[file] == self.number - 1]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str | None, environment: Mapping[str, str] = os.environ) -> Shard:
    """The shard "I/N" or "auto"; without a text all files. Raises SettingError."""
    if text is None:
        return Shard()
    first, step, where = "1", "1", shown(text)
    number, _, count = text.partition("/")
    if text == "auto":  # an array may begin at any number and have a step; a Job begins at 0
        names = _OF_SLURM if _OF_SLURM[0] in environment else _OF_JOB
        number, count, first, step = ([environment.get(name, "") for name in names] + ["0", "1"])[:4]
        where = f"auto with {', '.join(f'{name}={shown(environment.get(name))}' for name in names)}"
    if all(each.isascii() and each.isdigit() and len(each) < 10 for each in (number, count, first, step)):
        place, rest = divmod(int(number) - int(first), max(int(step), 1))
        if not rest and 0 <= place < int(count):
            return Shard(place + 1, int(count))
    raise SettingError(
        f"--shard is {where}; accepted: I/N with I from 1 to N, or auto with {_OF_SLURM[0]} and so on of an array with "
        f"one step, or {' and '.join(_OF_JOB)}"
    )


def _hash(file: str) -> int:
    return int.from_bytes(hashlib.sha256(file.encode(errors="surrogatepass")).digest()[:8], "big")
