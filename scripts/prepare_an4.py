#!/usr/bin/env python
"""Makes train.jsonl, dev.jsonl (and test.jsonl) from the public AN4 release, for scripts/train_demo.py.

The release: a folder or an archive of https://github.com/cmusphinx/an4, or the older an4_sphere.tar.gz or
an4_raw.littleendian.tar.gz. The audio is written as FLAC beside the manifests.
"""

import argparse
import sys
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path

from penstock.training.an4 import An4Error, divide_test, read_release, write_manifest

HALF = "fcaw,fvap,mdms2,miry,mjwl"
"""Five of the ten test speakers, 65 of the 130 utterances: the development set of the project's own figures."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("release", type=Path, help="folder or tar file")
    parser.add_argument("--out", type=Path, required=True, help="folder for the manifests and flac/")
    parser.add_argument(
        "--dev-speakers",
        default="",
        help=f"test speakers of dev.jsonl, by commas; the others go to test.jsonl; all without it; 'half': {HALF}",
    )
    options = parser.parse_args(arguments)
    try:
        _prepare(options.release, options.out, HALF if options.dev_speakers == "half" else options.dev_speakers)
    except (An4Error, OSError, tarfile.TarError) as error:
        print(f"prepare_an4: {error}", file=sys.stderr)
        return 1
    return 0


def _prepare(release: Path, out: Path, dev_speakers: str) -> None:
    with ExitStack() as stack:
        if not release.is_dir():
            unpacked = stack.enter_context(tempfile.TemporaryDirectory())
            with tarfile.open(release) as archive:
                archive.extractall(unpacked, filter="data")
            release = Path(unpacked)
        train, test = read_release(release)
        dev, held_out = divide_test(test, [speaker for speaker in dev_speakers.split(",") if speaker])
        for name, utterances in {"train": train, "dev": dev, "test": held_out}.items():
            if utterances:
                seconds = write_manifest(utterances, out / f"{name}.jsonl")
                speakers = len({utterance.speaker for utterance in utterances})
                print(f"{out / name}.jsonl: {len(utterances)} utterances, {speakers} speakers, {seconds / 60:.1f} min")


if __name__ == "__main__":
    sys.exit(main())
