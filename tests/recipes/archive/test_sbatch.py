"""The Slurm script, with the variables of an array and a program in the place of `penstock`."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "recipes" / "archive" / "transcribe.sbatch"


def test_a_task_of_an_array_takes_its_share(tmp_path):
    program = tmp_path / "penstock"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" "$@"\n')
    program.chmod(0o755)
    slurm = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "16", "SLURM_CPUS_PER_TASK": "2"}
    env = os.environ | slurm | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    given = ["my model", "calls.jsonl", "texts", "--context", "70,6"]
    done = subprocess.run(["bash", SCRIPT, *given], env=env, capture_output=True, text=True, check=True)
    share, command, *flags = done.stdout.splitlines()
    assert (share, command) == ("3/16", "transcribe") and flags[-2:] == ["--context", "70,6"]
    values = dict(zip(flags[3::2], flags[4::2], strict=False))
    assert flags[:3] == ["--shard", "auto", "--resume"] and values["--processes"] == "2"
    assert [values[flag] for flag in ("--model", "--from-manifest", "--out")] == given[:3]
    again = env | {"SLURM_ARRAY_TASK_COUNT": "1", "SHARES": "16"}
    done = subprocess.run(["bash", SCRIPT, *given], env=again, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[3] == "4/16"
    assert subprocess.run(["bash", SCRIPT, "model"], env=env, capture_output=True, check=False).returncode == 1
