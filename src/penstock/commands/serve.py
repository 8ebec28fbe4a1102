"""`penstock serve`: serves a checkpoint with Triton Inference Server until SIGTERM or SIGINT."""

import argparse
import os
import sys
from pathlib import Path

from penstock.decoding.beam.sizes import BeamSizes
from penstock.decoding.wfst.sizes import WfstSizes
from penstock.errors import SettingError
from penstock.model.config import AttentionContext, ModelConfig, TransducerConfig
from penstock.pipeline.decoder_offer import offer_decoders
from penstock.pipeline.decoding_config import DECODING_SETTINGS, WFST, DecodingConfig
from penstock.runtime import check_device
from penstock.serving import settings
from penstock.serving.information import server_information
from penstock.serving.launch import ALL_INTERFACES, LOOPBACK, ServerOptions
from penstock.serving.limits import raise_open_file_limit
from penstock.serving.model_repository import find_model_repository
from penstock.serving.ports import Ports, claim_ports
from penstock.serving.server import TritonServer
from penstock.serving.settings import SERVE_SETTINGS
from penstock.serving.supervisor import Console, serve_until_signal
from penstock.serving.triton_install import TritonInstall, find_triton

_CTC_BYTES = 3 * 8 + 4
"""Size of a slot of `CtcStateStore`."""
_FILES = tuple(setting for setting in DECODING_SETTINGS if setting.name in ("lm", "graph"))


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a checkpoint with Triton Inference Server",
        description="Serves until SIGTERM or SIGINT, then drains live streams. A second signal stops it at once. "
        "Each flag has an environment variable (--max-streams: PENSTOCK_MAX_STREAMS); the flag takes precedence.",
    )
    for setting in SERVE_SETTINGS:
        setting.add_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Checks everything that can be checked first, then serves."""
    values = argparse.Namespace(**{setting.name: setting.read(given=setting.given(args)) for setting in SERVE_SETTINGS})
    _check_files(args, values)
    raise_open_file_limit(values.max_streams)
    if values.device:
        check_device(values.device, settings.DEVICE.source(args.device))
    address = ALL_INTERFACES if values.listen_on_all_interfaces else LOOPBACK
    ports = Ports(values.http_port, values.grpc_port, values.metrics_port)
    claim_ports(ports, address)
    repository = find_model_repository(values.model_repository)
    install = find_triton()
    console = Console(values.log_format)
    environment, information, description = _prepare_model(values)
    for line in description:
        console.say(line)
    _warn_about_wheel(console, install, address)
    options = ServerOptions(repository, ports, address, values.drain_seconds, environment, information, values.verbose)
    server = TritonServer(install, options, sys.stderr.write)
    serve_until_signal(server, console, values.drain_seconds, values.restart)
    return 0


def _check_files(args: argparse.Namespace, values: argparse.Namespace) -> None:
    for setting in _FILES:
        path = getattr(values, setting.name)
        if path and not os.path.isfile(path):
            raise SettingError(f"{setting.source(setting.given(args))}: no such file: {path}")
    if values.lm:
        from penstock.scoring.ngram.file_check import check_lm_file

        check_lm_file(Path(values.lm))


def _warn_about_wheel(console: Console, install: TritonInstall, address: str) -> None:
    if install.is_wheel:
        reach = "" if address == LOOPBACK else ", and its ports are open to other machines"
        console.say(
            "the Triton server of the pip wheel is an old version with published vulnerabilities"
            f"{reach}. Put a current tritonserver on PATH to serve clients that you do not trust.",
            "warning",
        )


def _prepare_model(values: argparse.Namespace) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """The environment of the model processes, what clients are told, and the lines that describe what is served."""
    from penstock.model.bundle import Checkpoint
    from penstock.model.resolve import BUNDLED_MODEL, BUNDLED_MODEL_NOTICE, resolve_model

    chosen = {setting.name: getattr(values, setting.name) for setting in DECODING_SETTINGS}
    paths = {setting.name: chosen[setting.name] and os.path.abspath(chosen[setting.name]) for setting in _FILES}
    decoding = DecodingConfig(**chosen | paths)
    checkpoint = Checkpoint(resolve_model(values.model or BUNDLED_MODEL))
    checkpoint.verify()
    offer = offer_decoders(checkpoint.config, decoding)
    context = settings.select_served_context(checkpoint, values.context)
    for_models = {
        settings.MODEL: checkpoint.directory.absolute(),
        settings.CONTEXT: f"{context.left},{context.right}",
        settings.MAX_STREAMS: values.max_streams,
        settings.IDLE_SECONDS: values.idle_seconds,
        settings.DEVICE: values.device,
        settings.THREADS: values.threads,
        settings.QUEUE_DELAY_MS: values.queue_delay_ms,
        settings.LOG_FORMAT: values.log_format,
        settings.LOG_LEVEL: values.log_level,
        **{setting: getattr(decoding, setting.name) for setting in DECODING_SETTINGS},
    }
    environment = {setting.variable: "" if value is None else str(value) for setting, value in for_models.items()}
    stream_bytes = bytes_per_stream(checkpoint.config, context, decoding.beam_size)
    if WFST in offer.names:
        stream_bytes += WfstSizes(decoding.wfst_max_active).bytes_per_stream
    chunk_ms, megabytes = checkpoint.config.chunk_ms(context), stream_bytes / 1e6
    others = [str(each) for each in checkpoint.config.encoder.contexts if each != context]
    choice = f" (default; {settings.CONTEXT.flag} also takes {' '.join(others)})" if others else ""
    information = server_information(checkpoint, context, decoding, values.max_streams, values.idle_seconds)
    return (
        environment,
        information,
        [
            *([] if values.model else [BUNDLED_MODEL_NOTICE]),
            f"{checkpoint.directory.name}: {checkpoint.config.head_name}, "
            f"context {context}{'' if values.context else choice}, chunks of {chunk_ms:g} ms",
            f"{values.max_streams} streams, {megabytes:.2f} MB each, decoders {', '.join(offer.names)}",
        ],
    )


def bytes_per_stream(config: ModelConfig, context: AttentionContext, beam_size: int) -> int:
    """Memory of one stream's state on the device: encoder and decoders but `wfst`; computed without torch."""
    encoder = config.encoder
    cached_frames = context.left + context.chunk_encoder_frames
    keys_and_values = 2 * encoder.n_layers * cached_frames * encoder.d_model
    conv_tails = encoder.n_layers * (encoder.conv_kernel_size - 1) * encoder.d_model
    columns = encoder.mel_bins + encoder.subsampling_channels * sum(encoder.subsampled_mel_bins[:-1])
    heads = 0
    if config.transducer is not None:
        heads += _transducer_bytes(config.transducer, BeamSizes(beam_size))
    if config.ctc is not None:
        heads += _CTC_BYTES + _beam_bytes(0, 0, BeamSizes(beam_size, carried_encoder_frames=0))
    return 4 * (keys_and_values + conv_tails + columns) + heads


def _transducer_bytes(transducer: TransducerConfig, beam: BeamSizes) -> int:
    """Size of a slot of `GreedyStateStore` and of `BeamStateStore`."""
    predictor = 2 * transducer.predictor_layers * transducer.predictor_hidden + transducer.joint_hidden
    counters = 6  # chunks; search position, frames, labels at the frame; language model and phrase list
    greedy = 4 * (predictor + 1) + 8 * counters
    return greedy + _beam_bytes(predictor, transducer.joint_hidden, beam)


def _beam_bytes(predictor: int, joint_hidden: int, beam: BeamSizes) -> int:
    """Size of a slot of `BeamStateStore`; predictor: numbers in the predictor state of one hypothesis."""
    token_bytes, hypothesis_bytes = 3 * 8 + 2 * 4, 7 * 8 + 8 + 2 * 8 + 4
    each = beam.unstable_labels * token_bytes + hypothesis_bytes + 4 * predictor
    return beam.beam_size * each + 4 * beam.carried_encoder_frames * joint_hidden + 4 * 8
