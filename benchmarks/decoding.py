"""Times the decoders of this project and of NeMo on the same encoder output (docs/internals/benchmark_decoding.md)."""

import argparse
import math
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import AudioError, PackageError, PenstockError, SettingError
from penstock.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Plan
    from benchmarks.workload import Workload
    from penstock.model.config import AttentionContext

_MAX_STREAMS, _MAX_SECONDS, _MAX_REPEATS = 4096, 3600.0, 10_000


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status, 1 if a decoder failed."""
    try:
        return run(build_parser().parse_args(arguments))
    except PenstockError as error:
        print(f"benchmarks.decoding: error: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.decoding`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decoding",
        description="Decodes the same streams with every search in interleaved rounds, and reports the decoder's time, "
        "RTFx, its share of the time and the labels found for each batch size.",
    )
    parser.add_argument(
        "--model", action="append", metavar="MODEL", help="bundle, .nemo file or hub id; may be repeated"
    )
    parser.add_argument("--audio", action="append", metavar="FILE", help="input of --model; may be repeated")
    parser.add_argument("--random", metavar="KIND", help="random weights: rnnt, tdt or factorized")
    parser.add_argument(
        "--size", metavar="SIZE", help="size of random models: small, large or multilingual (small; large on a GPU)"
    )
    parser.add_argument(
        "--encoder",
        metavar="SIZE",
        help="encoder of random models: none, small, large or xlarge (none; large on a GPU)",
    )
    parser.add_argument("--batch", default="1,4,16,32", metavar="N,...", help="concurrent streams (1,4,16,32)")
    parser.add_argument("--beams", default="1,2,4,8,12", metavar="K,...", help="beam sizes (1,2,4,8,12)")
    parser.add_argument(
        "--decoders",
        metavar="NAME,...",
        help="label-looping, frame-looping, alsd, aes (these four); boosted, lm, ctc, ctc_beam; all",
    )
    parser.add_argument(
        "--kernels", metavar="NAME,...", help="kernels of greedy search: torch, fused (torch; both on a GPU)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="audio seconds per stream (10)")
    parser.add_argument("--context", metavar="L,R", help="attention context; chunks have R + 1 encoder frames")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (cpu)")
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="counted rounds, after one warm-up round (5)"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (1)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every figure to this file, the tables beside it"
    )
    parser.add_argument("--nemo", action="store_true", help="add NeMo's decoders, and whole utterances")
    return parser


def run(args: argparse.Namespace) -> int:
    """Checks all arguments before the work. Exit status 1 if a decoder failed."""
    plan = _checked_plan(args)
    from benchmarks.decoding_report import Part, document, render, render_heading, render_workload
    from benchmarks.measure import measure, set_up
    from benchmarks.results import environment, progress
    from penstock.reporting import write_report
    from penstock.runtime import prepare_process

    prepare_process(args.threads)
    here, parts = environment(args.threads, plan.device), []
    for workload in _workloads(args, plan):
        progress(f"{workload.name}: setting up")
        systems = set_up(workload, plan)
        part = Part(workload, systems.unavailable, [])
        parts.append(part)
        for batch, figures in zip(plan.batches, measure(workload, systems, plan), strict=True):
            progress(f"{workload.name}: batch {batch} done")
            part.figures += figures
            if args.json:  # what is done stays if the rest is interrupted
                result = document(here, plan, parts)
                write_report(args.json, result, render(result))
        result = document(here, plan, parts)
        if len(parts) == 1:
            print(render_heading(result) + "\n", flush=True)
        print(render_workload(result["workloads"][-1]) + "\n", flush=True)
    return int(any(one.is_failure for part in parts for one in part.unavailable))


def _checked_plan(args: argparse.Namespace) -> "Plan":
    """SettingError names the option that is wrong."""
    batches = _numbers("batch", args.batch, _MAX_STREAMS)
    _check_range("seconds", args.seconds, math.ulp(0.0), _MAX_SECONDS)
    _check_range("repeats", args.repeats, 1, _MAX_REPEATS)
    _check_range("threads", args.threads, 1, 1024)
    if args.audio and not args.model:
        raise SettingError("--audio goes with --model: random weights get random encoder output")
    for name in ("size", "encoder"):
        if getattr(args, name) and args.model and not args.random:
            raise SettingError(f"--{name} goes with --random: a model has its own")
    if args.nemo and find_spec("nemo") is None:
        raise PackageError(f"--nemo: nemo_toolkit is not installed: {install_command('oracle')}")
    from benchmarks.measure import Plan
    from benchmarks.random_models import ALL_KINDS, ENCODERS, NO_ENCODER, TRANSDUCERS
    from benchmarks.systems import ALL_DECODERS, DECODERS
    from penstock.decoding.beam.sizes import MAX_BEAM_SIZE
    from penstock.kernels.capability import FUSED, TORCH
    from penstock.reporting import check_writable
    from penstock.runtime import check_device

    decoders = args.decoders.split(",") if args.decoders is not None else list(DECODERS)
    if decoders == ["all"]:
        decoders = list(ALL_DECODERS)
    default = [TORCH] if args.device == "cpu" else [TORCH, FUSED]
    kernels = args.kernels.split(",") if args.kernels is not None else default
    for name, values, known in (
        ("decoders", decoders, ALL_DECODERS),
        ("random", [args.random] if args.random is not None else [], ALL_KINDS),
        ("size", [args.size] if args.size is not None else [], tuple(TRANSDUCERS)),
        ("encoder", [args.encoder] if args.encoder is not None else [], (NO_ENCODER, *ENCODERS)),
        ("kernels", kernels, (TORCH, FUSED)),
    ):
        for value in values:
            if value not in known:
                raise SettingError(f"--{name}: {value!r} is not supported; supported: {', '.join(known)}")
    beams = _numbers("beams", args.beams, MAX_BEAM_SIZE)
    args.context = _context(args.context)
    check_device(args.device, "--device")
    if args.json:
        check_writable(args.json)
    decoders, kernels = (list(dict.fromkeys(names)) for names in (decoders, kernels))
    return Plan(batches, beams, decoders, args.device, args.repeats, args.nemo, kernels=kernels)


def _numbers(name: str, text: str, maximum: int) -> list[int]:
    """Reads "1,4,16"; each once, in the order given."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(f"--{name} is {text!r}, expected integers, for example 1,4") from None
    for number in numbers:
        _check_range(name, number, 1, maximum)
    return list(dict.fromkeys(numbers))


def _check_range(name: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:  # NaN compares false
        expected = f"{minimum} .. {maximum}" if isinstance(minimum, int) else f"above 0, at most {maximum:g}"
        raise SettingError(f"--{name} is {value:g}, expected {expected}")


def _context(text: str | None) -> "AttentionContext | None":
    from penstock.model.config import parse_context

    context = parse_context(text) if text is not None else None
    if context is not None and (context.left < 0 or not 0 <= context.right <= 1000):
        raise SettingError(f"--context is {text!r}, expected LEFT at least 0 and RIGHT in 0 .. 1000")
    return context


def _workloads(args: argparse.Namespace, plan: "Plan") -> "Iterator[Workload]":
    """The given models, the given kind of random model, or both kinds of random models by default."""
    from benchmarks.random_models import KINDS, NO_ENCODER
    from benchmarks.workload import RandomSizes, random_workload

    batch, is_on_cpu = max(plan.batches), args.device == "cpu"
    for model in args.model or ():
        yield _bundle_workload(args, model, batch)
    sizes = RandomSizes(
        args.size or ("small" if is_on_cpu else "large"), args.encoder or (NO_ENCODER if is_on_cpu else "large")
    )
    for kind in [args.random] if args.random else [] if args.model else KINDS:
        yield random_workload(kind, sizes, batch, args.seconds, args.context, args.device)


def _bundle_workload(args: argparse.Namespace, model: str, batch: int) -> "Workload":
    import numpy as np

    from benchmarks.workload import bundle_workload, cut_streams, synthetic_sound
    from penstock.model.bundle import Checkpoint
    from penstock.model.resolve import resolve_model

    checkpoint = Checkpoint(resolve_model(model))
    rate = checkpoint.config.features.sample_rate_hz
    samples = max(1, round(args.seconds * rate))
    if args.audio:
        from penstock.frontend.audio_file import read_audio

        recording = np.concatenate([read_audio(path, rate) for path in args.audio])
        note = f"sound: {', '.join(args.audio)}"
    else:
        recording = synthetic_sound(samples, rate)
        note = "sound: synthetic, so there are few labels; give recordings with --audio"
    if not len(recording):
        raise AudioError(f"--audio: {', '.join(args.audio)}: there are no samples")
    streams = cut_streams(recording, batch, samples)
    return bundle_workload(Path(model).name, checkpoint, args.context, streams, args.device, note)


if __name__ == "__main__":
    sys.exit(main())
