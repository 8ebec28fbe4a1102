"""`penstock serve`: a checkpoint behind a Triton server, until it is told to stop."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.config import AttentionContext, ModelConfig
from penstock.decoding.beam_sizes import BeamSizes
from penstock.errors import PenstockError
from penstock.model_repository import find_model_repository
from penstock.ports import Ports, claim_ports
from penstock.server import ServerError, TritonServer
from penstock.server_launch import ALL_INTERFACES, LOOPBACK, ServerOptions
from penstock.triton_install import TritonInstall, find_triton

_POLL_S = 0.2


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a checkpoint with Triton Inference Server",
        description="Serves until SIGTERM or SIGINT; live streams may end first, unless a second signal comes.",
    )
    parser.add_argument("--model", default=os.environ.get("PENSTOCK_MODEL"), help="bundle, .nemo file or hub id")
    parser.add_argument("--context", default=os.environ.get("PENSTOCK_CONTEXT"), metavar="L,R",
                help="X")  # fmt: skip
    parser.add_argument("--max-streams", type=int, metavar="N", help="live streams at once (64)")
    parser.add_argument(
        "--idle-seconds", type=float, metavar="S", help="expire a stream that is silent for so long (30)"
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads of each member process (1)")
    parser.add_argument("--lm", default=os.environ.get("PENSTOCK_LM"), metavar="FILE", help="n-gram language model")
    parser.add_argument("--lm-weight", type=float, default=0.0, metavar="W", help="of streams that name none (0)")
    parser.add_argument("--beam-size", type=int, default=4, metavar="K", help="hypotheses a stream has room for (4)")
    parser.add_argument(
        "--cuda-graphs",
        default="auto",
        choices=("auto", "eager", "staged", "while"),
        help="driver of the decoder (auto)",
    )
    parser.add_argument(
        "--kernels",
        default="torch",
        choices=("torch", "auto", "fused"),
        help="who computes joint and predictor (torch)",
    )
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help=f"({port}; 0: any free one)")
    parser.add_argument("--listen-on-all-interfaces", action="store_true", help="not only on 127.0.0.1; no encryption")
    parser.add_argument("--drain-seconds", type=int, default=8, metavar="S", help="streams may go on after SIGTERM (8)")
    parser.add_argument("--model-repository", metavar="DIR", help="the Triton models (those of the checkout)")
    parser.add_argument("--verbose", action="store_true", help="the server's whole log, from its start")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked first, then serves."""
    _check(args)
    address = ALL_INTERFACES if args.listen_on_all_interfaces else LOOPBACK
    ports = Ports(args.http_port, args.grpc_port, args.metrics_port)
    claim_ports(ports, address)
    repository = find_model_repository(args.model_repository)
    install = find_triton()
    _warn_of_wheel(install, address)
    environment, description = _prepare_model(args)
    options = ServerOptions(repository, ports, address, args.drain_seconds, environment)
    return _serve(TritonServer(install, options, sys.stderr.write, args.verbose), description)


def _check(args: argparse.Namespace) -> None:
    if not args.model:
        raise PenstockError("--model is missing: a bundle directory, a .nemo file or a hub id")
    for name in ("max_streams", "threads", "idle_seconds", "drain_seconds"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise PenstockError(f"--{name.replace('_', '-')} is {value:g}, expected a positive number")


def _warn_of_wheel(install: TritonInstall, address: str) -> None:
    if install.is_wheel and address != LOOPBACK:
        print(
            "penstock: warning: this Triton server, the pip wheel's, is an old version with published holes: whoever "
            "reaches its ports may take over the machine. Put a current tritonserver on PATH to serve other machines.",
            file=sys.stderr,
        )


def _prepare_model(args: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """The members' environment, and the lines that say what is served."""
    from penstock.checkpoint import Checkpoint
    from penstock.model_source import resolve_model
    from penstock.settings import DEFAULT_MAX_STREAMS, check_max_streams, parse_context
    from penstock.stream_options import DecodingConfig

    checkpoint = Checkpoint(resolve_model(args.model))
    wanted = parse_context(args.context) if args.context else None
    context = checkpoint.config.encoder.select_context(wanted)
    max_streams = check_max_streams(args.max_streams or DEFAULT_MAX_STREAMS)
    decoding = DecodingConfig(
        args.lm and os.path.abspath(args.lm), args.lm_weight, args.beam_size, args.cuda_graphs, args.kernels
    )
    if decoding.lm and not os.path.isfile(decoding.lm):
        raise PenstockError(f"--lm: no such file: {args.lm}")
    environment = {
        "PENSTOCK_MODEL": str(checkpoint.directory.absolute()),
        "PENSTOCK_CONTEXT": f"{context.left},{context.right}",
        "PENSTOCK_MAX_STREAMS": str(max_streams),
        "PENSTOCK_THREADS": str(args.threads),
        "PENSTOCK_LM": decoding.lm or "",
        "PENSTOCK_LM_WEIGHT": f"{decoding.lm_weight:g}" if decoding.lm_weight else "",
        "PENSTOCK_BEAM_SIZE": str(decoding.beam_size),
        "PENSTOCK_CUDA_GRAPHS": decoding.cuda_graphs,
        "PENSTOCK_KERNELS": decoding.kernels,
    }
    if args.idle_seconds is not None:
        environment["PENSTOCK_IDLE_SECONDS"] = f"{args.idle_seconds:g}"
    kind = "TDT" if checkpoint.config.transducer.is_tdt else "RNN-T"
    chunk_ms, megabytes = (
        checkpoint.config.chunk_ms(context),
        bytes_per_stream(checkpoint.config, context, decoding.beam_size) / 1e6,
    )
    return environment, [
        f"{checkpoint.directory.name}: {kind}, context {context}, chunks of {chunk_ms:g} ms",
        f"{max_streams} streams, {megabytes:.2f} MB each",
    ]


def bytes_per_stream(config: ModelConfig, context: AttentionContext, beam_size: int) -> int:
    """Memory that one stream's state takes on the device: encoder, greedy and beam state, told without torch."""
    beam = BeamSizes(beam_size)
    encoder, transducer = config.encoder, config.transducer
    cached_frames = context.left + context.chunk_encoder_frames
    keys_and_values = 2 * encoder.n_layers * cached_frames * encoder.d_model
    conv_tails = encoder.n_layers * (encoder.conv_kernel_size - 1) * encoder.d_model
    columns = encoder.mel_bins + encoder.subsampling_channels * sum(encoder.subsampled_mel_bins[:-1])
    predictor = 2 * transducer.predictor_layers * transducer.predictor_hidden + transducer.joint_hidden
    counters = 6  # chunks; search position, frames, labels at the frame; language model and phrase list
    greedy = 4 * (predictor + 1) + 8 * counters
    return 4 * (keys_and_values + conv_tails + columns) + greedy + _beam_bytes(predictor, transducer.joint_hidden, beam)


def _beam_bytes(predictor: int, joint_hidden: int, beam: BeamSizes) -> int:
    """`BeamState`; predictor: numbers of one hypothesis's predictor."""
    token_bytes, hypothesis_bytes = 3 * 8 + 2 * 4, 7 * 8 + 8 + 2 * 8 + 4
    each = beam.tail_labels * token_bytes + hypothesis_bytes + 4 * predictor
    return beam.beam_size * each + 4 * beam.carried_encoder_frames * joint_hidden + 4 * 8


def _serve(server: TritonServer, description: list[str]) -> int:
    is_ready = False
    with _stop_signals(server) as stop:
        try:
            server.start()
            is_ready = server.wait_ready(is_cancelled=stop.is_set)
            if is_ready:
                _announce(server, description)
            while not stop.wait(_POLL_S):
                if server.has_ended():
                    raise ServerError(f"the server ended by itself: {server.end_reason()}")
        finally:
            was_clean = server.stop(drain=is_ready)
    if is_ready:
        print("penstock: stopped" if was_clean else "penstock: stopped; calls that were still open have been cut off")
    return 0


def _announce(server: TritonServer, description: list[str]) -> None:
    host, ports = LOOPBACK, server.ports
    urls = f"gRPC {host}:{ports.grpc}, HTTP {host}:{ports.http}, metrics http://{host}:{ports.metrics}/metrics"
    for line in (*description, f"ready: {urls}"):
        print(f"penstock: {line}", flush=True)


@contextmanager
def _stop_signals(server: TritonServer) -> Iterator[threading.Event]:
    """Sets the event at the first SIGTERM or SIGINT; a further one kills the server."""
    stop = threading.Event()

    def on_signal(*_: object) -> None:
        if stop.is_set():
            server.kill()
        stop.set()

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
