"""`penstock serve`: serves a checkpoint with Triton Inference Server until SIGTERM or SIGINT."""

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ModelNotFoundError, PenstockError, PortError, SettingError
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.resolve import BUNDLED_MODEL_NOTICE, int8_notice, resolve_or_bundled
from penstock.pipeline.memory.server_memory import ServerMemory, audio_bytes_per_s, server_memory
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import check_decoding_files, offer_decoders
from penstock.pipeline.options.windows import live_window
from penstock.pipeline.slots.table import slot_count
from penstock.reporting import memory_size
from penstock.runtime import available_memory_bytes, check_device
from penstock.serving.gateway_process import GatewayOptions, GatewayProcess, check_gateway
from penstock.serving.information import server_information, speaker_information
from penstock.serving.ipv6_ports import ipv6_ports, triton_address
from penstock.serving.launch import Ports, ServerOptions, claim_ports, raise_open_file_limit
from penstock.serving.model_repository import find_model_repository
from penstock.serving.server import TritonServer
from penstock.serving.settings import (
    FOREIGN_VARIABLES,
    OTHER_VARIABLES,
    ServeOptions,
    audio_limit_s,
    best_device,
    select_served_context,
    served_speaker_memory,
    served_speakers,
)
from penstock.serving.supervisor import Console, serve_until_signal
from penstock.serving.triton_install import TritonInstall, find_triton
from penstock.speakers.bundle import SpeakerCheckpoint
from penstock_common.declaration import unknown_variables
from penstock_common.listening import is_loopback
from penstock_common.options import LIVE

REJECTED = 2
"""Exit status for settings and files that cannot work; that of a wrong flag, too. systemd does not restart after it."""
_FILES = ("lm", "graph")
_GATEWAYS = "PENSTOCK_GATEWAY_"
_GROUPS = {
    "model": "model, streams and device",
    "lm": "decoding",
    "language": "language and ends of segments",
    "phrase_memory_mib": "memory and kernels",
    "http_port": "ports and process",
    "log_format": "logs",
}
"""By the first option of each."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "serve",
        description="Serves until SIGTERM or SIGINT, then drains live streams. A second signal stops it at once. "
        "Each flag has an environment variable (--max-streams: PENSTOCK_MAX_STREAMS); the flag takes precedence. "
        "Defaults are in brackets.",
    )
    ServeOptions.add_flags(parser, _GROUPS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked first, then serves. Exit status 2 where no later start would succeed."""
    try:
        values = ServeOptions.read(args=args)
        console = Console(values.log_format)
        console.say("checking the settings and the model")
        _warn_about_variables(console)
        gateway = check_gateway() if values.gateway else None
        server, gateway = _prepare_server(args, values, console, gateway)
    except (PortError, ModelNotFoundError):  # a port becomes free, and the network comes up
        raise
    except PenstockError as error:
        print(f"penstock: error: {error}", file=sys.stderr)
        return REJECTED
    with ExitStack() as beside:
        if triton_address(values.listen) != values.listen:
            beside.enter_context(ipv6_ports(server.ports.http, server.ports.metrics))
        started = _start_gateway(server, gateway, values, console, beside) if gateway else None
        serve_until_signal(server, console, values.drain_seconds, values.restart, started)
    return 1 if started and started.has_failed else 0


def _warn_about_variables(console: Console) -> None:
    """The gateway names those that are meant for it."""
    own = {name: text for name, text in os.environ.items() if not name.startswith(_GATEWAYS)}
    known = (*ServeOptions().variables(), *OTHER_VARIABLES, *FOREIGN_VARIABLES)
    for warning in unknown_variables(ServeOptions.prefix, known, own):
        console.say(warning, "warning")


def _start_gateway(
    server: TritonServer, options: GatewayOptions, values: ServeOptions, console: Console, beside: ExitStack
) -> GatewayProcess:
    """Starts it. If it ends by itself, the server stops."""

    def end(status: int) -> None:
        console.say(f"the gateway has ended with status {status}", "error", status=status)
        os.kill(os.getpid(), signal.SIGTERM)

    gateway = GatewayProcess(server.url(server.ports.grpc), options, values.drain_seconds, values.log_format, end)
    return beside.enter_context(gateway)


def _prepare_server(
    args: argparse.Namespace, values: ServeOptions, console: Console, gateway: GatewayOptions | None
) -> tuple[TritonServer, GatewayOptions | None]:
    """The server, and the gateway's options with its ports."""
    _check_files(args, values)
    files = 1 if triton_address(values.listen) == values.listen else 3  # also the two of `ipv6_ports`
    raise_open_file_limit(values.max_streams, files)
    _check_device(args, values)
    others = gateway.ports if gateway else ()
    wanted = Ports(values.http_port, values.grpc_port, values.metrics_port)
    ports, other_ports = claim_ports(wanted, values.listen, others)
    if gateway:
        gateway = gateway._replace(
            ports=[each._replace(port=port) for each, port in zip(others, other_ports, strict=True)]
        )
    repository = find_model_repository(values.model_repository)
    install = find_triton()
    served = _load_served(values)
    precision = served.checkpoint.choose_precision(values.precision, _device_of(values))
    values = values.model_copy(update={"precision": precision})
    model, limits = served[:3], (values.max_streams, values.idle_seconds, values.drain_seconds)
    information = server_information(*model, *limits, served.max_audio_s, values.precision)
    if served.speakers is not None:
        information |= speaker_information(served.speakers.config, values.all_speaker_streams)
    memory = server_memory(model[0].config, *model[1:], values.max_streams, served.max_audio_s, values.precision)
    memory = memory.with_speakers(served_speaker_memory(values))
    for line in _description(values, served, memory):
        console.say(line)
    _check_memory(values, served, memory, console)
    _warn_about_wheel(console, install, values.listen)
    address = triton_address(values.listen)
    # Where other processes rely on the ports, none that is lost can be replaced by another.
    kept = ports if gateway or address != values.listen else wanted
    options = ServerOptions(
        repository, kept, address, values.drain_seconds, _environment(values, served), information, values.verbose
    )
    server = TritonServer(install, options, sys.stderr.write)
    server.ports = ports
    return server, gateway


def _check_device(args: argparse.Namespace, values: ServeOptions) -> None:
    """Imports torch only where a value needs it."""
    if values.device:
        check_device(values.device, ServeOptions.option("device").source(args.device))
    needs_cuda = values.cuda_graphs in ("full_graph", "no_while_loops")
    if not needs_cuda and values.kernels != "fused":
        return
    from penstock.graphs.select import select_driver
    from penstock.kernels.capability import resolve

    device = values.device or best_device()
    if device == "cpu" and needs_cuda:
        select_driver(values.cuda_graphs, device)
    if values.kernels == "fused":
        resolve(values.kernels, device)


def _check_files(args: argparse.Namespace, values: ServeOptions) -> None:
    for option in map(ServeOptions.option, _FILES):
        path = getattr(values, option.name)
        if path and not os.path.isfile(path):
            raise SettingError(f"{option.source(option.given(args))}: no such file: {path}")
    if values.lm:
        from penstock.scoring.ngram.io import check_lm_file

        check_lm_file(Path(values.lm))


def _warn_about_wheel(console: Console, install: TritonInstall, address: str) -> None:
    if install.is_wheel and not is_loopback(address):
        console.say(
            "the Triton server of the pip wheel is an old version with published vulnerabilities, and its ports are "
            "open to other machines. Put a current tritonserver on PATH to serve clients that you do not trust.",
            "warning",
        )


class _Served(NamedTuple):
    """Checkpoint and settings of a server."""

    checkpoint: Checkpoint
    context: AttentionContext | None
    """None for an offline model."""
    decoding: DecodingConfig
    max_audio_s: int
    """Audio of all open files of an offline model."""
    speakers: SpeakerCheckpoint | None


def _load_served(values: ServeOptions) -> _Served:
    """The checkpoint, imported if it has to be, after its checks."""
    paths = {name: os.path.abspath(path) for name in _FILES if (path := getattr(values, name))}
    decoding = values.decoding.replace(**paths)
    checkpoint = Checkpoint(resolve_or_bundled(values.model))
    speakers = served_speakers(values)
    check_decoding_files(decoding, checkpoint)
    context = select_served_context(checkpoint, values.context)
    max_audio_s = audio_limit_s(checkpoint.config, values.replace(**paths))
    return _Served(checkpoint, context, decoding, max_audio_s, speakers)


def _environment(values: ServeOptions, served: _Served) -> dict[str, str]:
    """The environment of the model processes, which read all options from it."""
    model = str(served.checkpoint.directory.absolute())
    speakers = os.path.abspath(values.speakers) if values.speakers else None
    resolved = values.replace(model=model, speakers=speakers, **served.decoding.given())
    if served.context is None:
        return resolved.replace(max_audio_s=served.max_audio_s).variables()
    return resolved.variables() | {"PENSTOCK_CONTEXT": f"{served.context.left},{served.context.right}"}


def _check_memory(values: ServeOptions, served: _Served, memory: ServerMemory, console: Console) -> None:
    """Rejects what does not fit: on a CUDA device all streams, on the CPU the model; else warns there."""
    if _device_of(values) != "cpu":
        _check_device_memory(values, served)
        return
    available = available_memory_bytes() / 2**30
    if memory.total <= available * 2**30:
        return
    if memory.at_start > available * 2**30:
        raise SettingError(
            f"the model needs {memory.at_start / 2**30:.1f} GiB of memory, and {available:.1f} GiB are available; "
            "accepted: a smaller model, or more memory"
        )
    lower = "--max-audio-s" if served.context is None else "--max-streams or --phrase-memory-mib"
    console.say(
        f"{values.max_streams} streams may need {memory.total / 2**30:.1f} GiB of memory, and {available:.1f} GiB are "
        f"available: lower {lower}",
        "warning",
    )


def _check_device_memory(values: ServeOptions, served: _Served) -> None:
    import torch

    from penstock.encoder.precision import number_type
    from penstock.pipeline.memory.device_memory import device_memory

    device = values.device or "cuda"
    size = number_type(values.precision, device).itemsize
    audio_s = served.max_audio_s
    memory = device_memory(served.checkpoint.config, served.context, served.decoding, values.max_streams, size, audio_s)
    memory = memory.with_speakers(served_speaker_memory(values, size))
    memory.check_fits(torch.cuda.mem_get_info(device)[0], device)


def _device_of(values: ServeOptions) -> str:
    """The kind of device; imports torch only where no value names it."""
    return (values.device or best_device()).partition(":")[0]


def _description(values: ServeOptions, served: _Served, memory: ServerMemory) -> list[str]:
    """Lines for the user."""
    checkpoint, decoding = served.checkpoint, served.decoding
    config = checkpoint.config
    notice = int8_notice(checkpoint, values.precision, _device_of(values))
    megabytes = memory.streams / slot_count(values.max_streams) / 1e6
    return [
        *([] if values.model else [BUNDLED_MODEL_NOTICE]),
        f"{checkpoint.directory.name}: {config.head_name}, {_audio(values, served)}",
        f"{values.max_streams} streams, {megabytes:.2f} MB each, "
        f"decoders {', '.join(offer_decoders(config, decoding).names)}",
        f"memory: weights {memory_size(memory.weights)}, phrase lists up to {memory_size(memory.phrases)}, "
        f"a decoding step up to {memory_size(memory.step)}",
        *([_file_memory(served, memory)] if served.context is None else []),
        *([_speakers(served.speakers, values, memory)] if served.speakers else []),
        *([notice] if notice else []),
    ]


def _audio(values: ServeOptions, served: _Served) -> str:
    """Describes the audio that the model takes."""
    config, context = served.checkpoint.config, served.context
    if context is None:
        return f"offline, files of up to {values.max_file_minutes} min"
    others = [str(each) for each in config.encoder.contexts if each != context]
    choice = f" (default; --context also takes {' '.join(others)})" if others and not values.context else ""
    return f"context {context}{choice}, chunks of {config.chunk_ms(context):g} ms"


def _speakers(checkpoint: SpeakerCheckpoint, values: ServeOptions, memory: ServerMemory) -> str:
    return (
        f"speakers: {checkpoint.directory.resolve().name}, at most {checkpoint.config.speakers} in a stream, "
        f"{values.all_speaker_streams} streams; weights {memory_size(memory.speaker_weights)}, "
        f"streams and steps up to {memory_size(memory.speakers)}"
    )


def _file_memory(served: _Served, memory: ServerMemory) -> str:
    config = served.checkpoint.config
    hour_bytes, window = 3600 * audio_bytes_per_s(config), live_window(LIVE, config)
    assert window is not None
    window_s = window.frames * config.encoder_frame_ms / 1000
    window_bytes = window_s * (audio_bytes_per_s(config) + 4 * config.features.sample_rate_hz)
    return (
        f"files: {served.max_audio_s} s of audio at a time, up to {memory_size(memory.audio)} "
        f"({memory_size(hour_bytes)} per hour of audio); "
        f"a live stream counts as {window_s:g} s, {window_bytes / 1e6:.1f} MB"
    )
