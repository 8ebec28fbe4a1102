"""`penstock serve`: a checkpoint behind a Triton server, until it is told to stop."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import settings
from penstock.config import AttentionContext, ModelConfig
from penstock.decoding.beam_sizes import BeamSizes
from penstock.decoding_config import DecodingConfig
from penstock.errors import PenstockError
from penstock.member_watch import MemberWatch
from penstock.model_repository import find_model_repository
from penstock.patience import PATIENCE_S, patience_library
from penstock.ports import Ports, claim_ports
from penstock.server import ServerError, TritonServer
from penstock.server_launch import ALL_INTERFACES, LOOPBACK, ServerOptions
from penstock.settings import SERVE_SETTINGS
from penstock.triton_install import TritonInstall, find_triton

_POLL_S = 0.2
_FLAGS = {
    settings.MODEL: ("MODEL", "bundle, .nemo file or hub id"),
    settings.CONTEXT: ("L,R", "attention context in encoder frames (the checkpoint's first)"),
    settings.MAX_STREAMS: ("N", "live streams at once"),
    settings.IDLE_SECONDS: ("S", "expire a stream that is silent for so long"),
    settings.DEVICE: ("DEVICE", "cpu, cuda or cuda:N (cuda where there is one)"),
    settings.THREADS: ("N", "CPU threads of each member process"),
    settings.QUEUE_DELAY_MS: ("MS", "longest wait of a request for others to share its batch (40)"),
    settings.LM: ("FILE", "n-gram language model"),
    settings.LM_WEIGHT: ("W", "of streams that name none"),
    settings.LM_FUSION: ("NAME", f"how it enters beam search: {settings.LM_FUSION.accepted}"),
    settings.BEAM_SIZE: ("K", "hypotheses a stream has room for"),
    settings.LENGTH_NORMALISATION: (None, "rank a beam's hypotheses by score / (labels + 1), the default"),
    settings.AES_EXPANSIONS: ("N", "labels of a hypothesis of `aes` at one frame"),
    settings.AES_MARGIN: ("NATS", "expansions of `aes` that much below the best are pruned"),
    settings.AES_EXTRA_LABELS: ("N", "a hypothesis of `aes` is expanded by the beam size and so many labels"),
    settings.MAX_SYMBOLS: ("N", "labels at one frame, of `greedy` and `alsd` (the checkpoint's)"),
    settings.PHRASE_MEMORY_MIB: ("MIB", "for the boosted phrases of all streams, on the decoder's device"),
    settings.CUDA_GRAPHS: ("DRIVER", f"driver of the decoder: {settings.CUDA_GRAPHS.accepted}"),
    settings.KERNELS: ("KERNELS", f"who computes joint and predictor: {settings.KERNELS.accepted}"),
    settings.HTTP_PORT: ("PORT", "0: any free one"),
    settings.GRPC_PORT: ("PORT", "0: any free one"),
    settings.METRICS_PORT: ("PORT", "0: any free one"),
    settings.LISTEN_ON_ALL_INTERFACES: (None, "not only on 127.0.0.1; no encryption"),
    settings.DRAIN_SECONDS: ("S", "streams may go on after SIGTERM"),
    settings.MODEL_REPOSITORY: ("DIR", "the Triton models (those of the checkout)"),
    settings.VERBOSE: (None, "the server's whole log, from its start"),
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command. The flags' values stay text until `run`, which reads them as it reads the variables."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a checkpoint with Triton Inference Server",
        description="Serves until SIGTERM or SIGINT; live streams may end first, unless a second signal comes. Each "
        "flag has an environment variable, PENSTOCK_MAX_STREAMS for --max-streams; the flag wins.",
    )
    for setting in SERVE_SETTINGS:
        metavar, about = _FLAGS[setting]
        if metavar is None:
            parser.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=about)
            continue
        default = (
            ""
            if setting.default is None
            else f" ({setting.default:g})"
            if isinstance(setting.default, float)
            else f" ({setting.default})"
        )
        parser.add_argument(setting.flag, metavar=metavar, help=about + default)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked first, then serves."""
    values = argparse.Namespace(
        **{setting.name: setting.read(given=settings.given_text(args, setting)) for setting in SERVE_SETTINGS}
    )
    _check_files(args, values)
    address = ALL_INTERFACES if values.listen_on_all_interfaces else LOOPBACK
    ports = Ports(values.http_port, values.grpc_port, values.metrics_port)
    claim_ports(ports, address)
    repository = find_model_repository(values.model_repository)
    install = find_triton()
    _warn_of_wheel(install, address)
    environment, description = _prepare_model(values)
    _tell_of_impatience()
    options = ServerOptions(repository, ports, address, values.drain_seconds, environment)
    return _serve(TritonServer(install, options, sys.stderr.write, values.verbose), description)


def _check_files(args: argparse.Namespace, values: argparse.Namespace) -> None:
    if not values.model:
        model = settings.MODEL
        raise PenstockError(f"{model.flag} is missing, and {model.variable} is not set; accepted: {model.accepted}")
    if values.lm and not os.path.isfile(values.lm):
        raise PenstockError(f"{settings.LM.source(args.lm)}: no such file: {values.lm}")


def _warn_of_wheel(install: TritonInstall, address: str) -> None:
    if install.is_wheel and address != LOOPBACK:
        print(
            "penstock: warning: this Triton server, the pip wheel's, is an old version with published holes: whoever "
            "reaches its ports may take over the machine. Put a current tritonserver on PATH to serve other machines.",
            file=sys.stderr,
        )


def _tell_of_impatience() -> None:
    if patience_library() is None:
        print(
            "penstock: note: Triton gives up a member that stands still for a second, as on a machine that is held up; "
            f"it would wait for {1 + PATIENCE_S} seconds with a C compiler (`cc`) and a cache to load the result from, "
            "without white space or colons in its path (docs/faults.md)",
            file=sys.stderr,
        )


def _prepare_model(values: argparse.Namespace) -> tuple[dict[str, str], list[str]]:
    """The members' environment, and the lines that say what is served."""
    from penstock.checkpoint import Checkpoint
    from penstock.model_source import resolve_model

    chosen = {setting.name: getattr(values, setting.name) for setting in settings.DECODING_SETTINGS}
    decoding = DecodingConfig(**chosen | {"lm": values.lm and os.path.abspath(values.lm)})
    checkpoint = Checkpoint(resolve_model(values.model))
    checkpoint.verify()
    context = settings.select_served_context(checkpoint, values.context)
    for_members = {
        settings.MODEL: checkpoint.directory.absolute(),
        settings.CONTEXT: f"{context.left},{context.right}",
        settings.MAX_STREAMS: values.max_streams,
        settings.IDLE_SECONDS: values.idle_seconds,
        settings.DEVICE: values.device,
        settings.THREADS: values.threads,
        settings.QUEUE_DELAY_MS: values.queue_delay_ms,
        **{setting: getattr(decoding, setting.name) for setting in settings.DECODING_SETTINGS},
    }
    environment = {setting.variable: "" if value is None else str(value) for setting, value in for_members.items()}
    kind = "TDT" if checkpoint.config.transducer.is_tdt else "RNN-T"
    chunk_ms, megabytes = (
        checkpoint.config.chunk_ms(context),
        bytes_per_stream(checkpoint.config, context, decoding.beam_size) / 1e6,
    )
    return environment, [
        f"{checkpoint.directory.name}: {kind}, context {context}, chunks of {chunk_ms:g} ms",
        f"{values.max_streams} streams, {megabytes:.2f} MB each",
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
                _watch(server, stop)
        finally:
            was_clean = server.stop(drain=stop.is_set() and is_ready)
    if is_ready:
        print("penstock: stopped" if was_clean else "penstock: stopped; calls that were still open have been cut off")
    return 0


def _watch(server: TritonServer, stop: threading.Event) -> None:
    """Until `stop`; ServerError if the server ends before, or has lost a member, without which it could not drain."""
    with MemberWatch(server.process_id, f"{LOOPBACK}:{server.ports.http}") as watch:
        while not stop.wait(_POLL_S):
            if server.has_ended():
                raise ServerError(f"the server ended by itself: {server.end_reason()}")
            if watch.loss:
                raise ServerError(f"the server is ended: {watch.loss}")


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
