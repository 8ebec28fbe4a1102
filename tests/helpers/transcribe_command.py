"""Runs `penstock transcribe` in this process."""

import argparse

from penstock.commands import transcribe


def run(*arguments: str) -> int:
    """Returns its exit status."""
    parser = argparse.ArgumentParser()
    transcribe.add_parser(parser.add_subparsers())
    args = parser.parse_args(["transcribe", *arguments])
    return args.run(args)


def lines(capsys) -> list[str]:
    """Lines that it has printed."""
    return capsys.readouterr().out.splitlines()
