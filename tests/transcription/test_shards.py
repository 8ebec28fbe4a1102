"""Shards: disjoint and complete, balanced, stable, and named by the environment."""

import pytest

from penstock.errors import SettingError
from penstock.transcription.shards import Shard, parse_shard

FILES = [f"day/{number % 30}.wav" for number in range(100)]  # several parts of each
_STEP = "SLURM_ARRAY_TASK_STEP"


def chosen(files: list[str], audio_s: list[float | None], count: int) -> list[list[int]]:
    return [Shard(number, count).choose(files, audio_s) for number in range(1, count + 1)]


@pytest.mark.parametrize("count", [1, 3, 7, 200])
@pytest.mark.parametrize("audio_s", [[None] * 100, [float(1 + number % 9) for number in range(100)]])
def test_each_file_is_in_one_shard(count, audio_s):
    shards = chosen(FILES, audio_s, count)
    assert sorted(index for shard in shards for index in shard) == list(range(100))
    names = [{FILES[index] for index in shard} for shard in shards]
    assert sum(map(len, names)) == 30
    assert all(shard == sorted(shard) for shard in shards)


def test_known_durations_are_balanced_and_others_stay_when_files_are_added():
    files = [f"{number}.wav" for number in range(50)]
    audio_s = [100.0 if number == 7 else 10.0 for number in range(50)]
    assert [sum(audio_s[index] for index in shard) for shard in chosen(files, audio_s, 3)] == [200.0, 200.0, 190.0]
    before = chosen(files[:30], [None] * 30, 3)
    after = chosen(files, [None, *audio_s[1:]], 3)
    assert [[index for index in shard if index < 30] for shard in after] == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0"}, "1/4"),
        ({"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"}, "4/4"),
        ({"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0"}, None),
        ({"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0", _STEP: "3"}, "4/4"),
        ({"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0", _STEP: "3"}, None),
        ({"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "8"}, "1/8"),
        ({"JOB_COMPLETION_INDEX": "7", "JOB_COMPLETIONS": "8"}, "8/8"),
        ({"JOB_COMPLETION_INDEX": "8", "JOB_COMPLETIONS": "8"}, None),
        ({"JOB_COMPLETION_INDEX": "2"}, None),
        ({}, None),
    ],
)
def test_auto(environment, expected):
    if expected is None:
        with pytest.raises(SettingError, match=r"--shard is auto with .*accepted: I/N"):
            parse_shard("auto", {_STEP: "1", **environment})
    else:
        assert str(parse_shard("auto", {_STEP: "1", **environment})) == expected


@pytest.mark.parametrize(
    "text", ["0/3", "4/3", "1/0", "1", "", "a/b", "1/2/3", "-1/3", "1.0/2", "\u0661/2", "1/" + "9" * 5000]
)
def test_wrong_shards_are_named(text):
    with pytest.raises(SettingError, match=r"SETTING_INVALID: --shard is .*; accepted: I/N with I from 1 to N"):
        parse_shard(text, {})
