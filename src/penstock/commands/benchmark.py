"""`penstock benchmark decoding`: how long the decoders take, ours and NeMo's, on the same encoder output."""

import argparse
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.benchmarking.decoding import Plan
    from penstock.benchmarking.subject import Subject
    from penstock.config import AttentionContext

_MOST_STREAMS, _MOST_SECONDS, _MOST_REPEATS = 4096, 3600.0, 10_000


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command and its one part."""
    parser = subparsers.add_parser("benchmark", help="measure a part of the recogniser")
    parts = parser.add_subparsers(required=True, metavar="PART")
    _add_decoding(parts)


def _add_decoding(parts: argparse._SubParsersAction) -> None:
    parser = parts.add_parser(
        "decoding",
        help="the searches, eager and as CUDA graphs, beside NeMo's",
        description="Decodes the same streams with every search, in turns, and reports the decoder's time, RTFx, its "
        "share of the time and the labels found for each batch size.",
    )
    parser.add_argument(
        "--model", action="append", metavar="MODEL", help="bundle, .nemo file or hub id; may be repeated"
    )
    parser.add_argument("--audio", action="append", metavar="FILE", help="what --model hears; may be repeated")
    parser.add_argument("--random", metavar="KIND", help="random weights: rnnt or tdt (both, without --model)")
    parser.add_argument("--size", metavar="SIZE", help="of random models: small or large (small; large on a GPU)")
    parser.add_argument(
        "--encoder", metavar="SIZE", help="of random models: none, small, large or xlarge (none; large on a GPU)"
    )
    parser.add_argument("--batch", default="1,4,16,32", metavar="N,...", help="streams at once (1,4,16,32)")
    parser.add_argument("--beams", default="1,2,4,8,12", metavar="K,...", help="beam sizes (1,2,4,8,12)")
    parser.add_argument(
        "--decoders", metavar="NAME,...", help="label-looping, frame-looping, alsd, aes (these four); boosted; all"
    )
    parser.add_argument("--kernels", metavar="NAME,...", help="of greedy search: torch, fused (torch; both on a GPU)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="audio of each stream (10)")
    parser.add_argument("--context", metavar="L,R", help="attention context; chunks have R + 1 encoder frames")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (cpu)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds that count, after one more (5)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--nemo", action="store_true", help="NeMo's decoders too, and ours over whole utterances")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything first. Exit status 1 if a decoder failed."""
    plan = _checked_plan(args)
    from penstock.benchmarking.decoding import measure, set_up
    from penstock.benchmarking.report import Circumstances, Part, document, render, write
    from penstock.cpu import prepare_process

    prepare_process(args.threads)
    where, parts = Circumstances.here(plan.device, args.threads), []
    for subject in _subjects(args, plan):
        _say(f"{subject.name}: setting up")
        field = set_up(subject, plan)
        part = Part(subject, field.absent, [])
        parts.append(part)
        for batch, figures in zip(plan.batches, measure(subject, field, plan), strict=True):
            _say(f"{subject.name}: batch {batch} done")
            part.figures += figures
            if args.json:  # what is done stays if the rest is interrupted
                write(args.json, document(where, plan, parts))
        print(render(where, plan, part) + "\n", flush=True)
    return int(any(absence.is_failure for part in parts for absence in part.absent))


def _say(message: str) -> None:
    print(f"penstock: {message}", file=sys.stderr, flush=True)


def _checked_plan(args: argparse.Namespace) -> "Plan":
    """PenstockError names the option that is wrong."""
    batches = _numbers("batch", args.batch, _MOST_STREAMS)
    _check_range("seconds", args.seconds, math.ulp(0.0), _MOST_SECONDS)
    _check_range("repeats", args.repeats, 1, _MOST_REPEATS)
    _check_range("threads", args.threads, 1, 1024)
    if args.audio and not args.model:
        raise PenstockError("--audio goes with --model: random weights get random encoder output")
    for name in ("size", "encoder"):
        if getattr(args, name) and args.model and not args.random:
            raise PenstockError(f"--{name} goes with --random: a model has its own")
    if args.nemo and find_spec("nemo") is None:
        raise PenstockError(
            "--nemo: nemo_toolkit is not installed; it comes with the extra: pip install 'penstock[oracle]'"
        )
    from penstock.benchmarking.decoding import Plan
    from penstock.benchmarking.our_decoders import ALL_DECODERS, DECODERS
    from penstock.benchmarking.random_encoder import ENCODERS, NO_ENCODER
    from penstock.benchmarking.random_transducer import KINDS, SIZES
    from penstock.decoding.beam_sizes import LARGEST_BEAM
    from penstock.device import check_device
    from penstock.evaluation.report import check_writable
    from penstock.kernels.capability import FUSED, TORCH

    decoders = args.decoders.split(",") if args.decoders is not None else list(DECODERS)
    if decoders == ["all"]:
        decoders = list(ALL_DECODERS)
    default = [TORCH] if args.device == "cpu" else [TORCH, FUSED]
    kernels = args.kernels.split(",") if args.kernels is not None else default
    for name, values, known in (
        ("decoders", decoders, ALL_DECODERS),
        ("random", [args.random] if args.random is not None else [], KINDS),
        ("size", [args.size] if args.size is not None else [], tuple(SIZES)),
        ("encoder", [args.encoder] if args.encoder is not None else [], (NO_ENCODER, *ENCODERS)),
        ("kernels", kernels, (TORCH, FUSED)),
    ):
        for value in values:
            if value not in known:
                raise PenstockError(f"--{name}: {value!r} is not supported; supported: {', '.join(known)}")
    beams = _numbers("beams", args.beams, LARGEST_BEAM)
    args.context = _context(args.context)
    check_device(args.device)
    if args.json:
        check_writable(args.json)
    decoders, kernels = (list(dict.fromkeys(names)) for names in (decoders, kernels))
    return Plan(batches, beams, decoders, args.device, args.repeats, args.nemo, kernels=kernels)


def _numbers(name: str, text: str, most: int) -> list[int]:
    """Reads "1,4,16"; each once, in the order given."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise PenstockError(f"--{name} is {text!r}, expected whole numbers, for example 1,4") from None
    for number in numbers:
        _check_range(name, number, 1, most)
    return list(dict.fromkeys(numbers))


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # NaN compares false
        expected = f"{least} .. {most}" if isinstance(least, int) else f"above 0, at most {most:g}"
        raise PenstockError(f"--{name} is {value:g}, expected {expected}")


def _context(text: str | None) -> "AttentionContext | None":
    from penstock.settings import parse_context

    context = parse_context(text) if text is not None else None
    if context is not None and (context.left < 0 or not 0 <= context.right <= 1000):
        raise PenstockError(f"--context is {text!r}, expected LEFT at least 0 and RIGHT in 0 .. 1000")
    return context


def _subjects(args: argparse.Namespace, plan: "Plan") -> "Iterator[Subject]":
    """The models asked for, the random one asked for, or both kinds of random ones."""
    from penstock.benchmarking.random_encoder import NO_ENCODER
    from penstock.benchmarking.random_transducer import KINDS
    from penstock.benchmarking.subject import RandomSizes, random_subject

    batch, is_on_cpu = max(plan.batches), args.device == "cpu"
    for model in args.model or ():
        yield _bundle_subject(args, model, batch)
    sizes = RandomSizes(
        args.size or ("small" if is_on_cpu else "large"), args.encoder or (NO_ENCODER if is_on_cpu else "large")
    )
    for kind in [args.random] if args.random else [] if args.model else KINDS:
        yield random_subject(kind, sizes, batch, args.seconds, args.context, args.device)


def _bundle_subject(args: argparse.Namespace, model: str, batch: int) -> "Subject":
    import numpy as np

    from penstock.benchmarking.sound import cut_streams, make_sound
    from penstock.benchmarking.subject import bundle_subject
    from penstock.checkpoint import Checkpoint
    from penstock.model_source import resolve_model

    checkpoint = Checkpoint(resolve_model(model))
    rate = checkpoint.config.features.sample_rate_hz
    samples = max(1, round(args.seconds * rate))
    if args.audio:
        from penstock.audio import read_audio

        recording = np.concatenate([read_audio(path, rate) for path in args.audio])
        note = f"sound: {', '.join(args.audio)}"
    else:
        recording = make_sound(samples, rate)
        note = "sound: made up, so there are few labels; --audio gives real ones"
    if not len(recording):
        raise PenstockError(f"--audio: {', '.join(args.audio)}: there are no samples")
    streams = cut_streams(recording, batch, samples)
    return bundle_subject(Path(model).name, checkpoint, args.context, streams, args.device, note)
