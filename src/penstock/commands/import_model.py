"""`penstock import SOURCE DIR`: converts a checkpoint to a bundle."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copyfile, copytree
from typing import TYPE_CHECKING

from penstock.errors import CheckpointError, ModelNotFoundError, SettingError

if TYPE_CHECKING:
    from penstock.model.bundle import Checkpoint
    from penstock.speakers.bundle import SpeakerCheckpoint

_ACCEPTED = "a .nemo file, a directory in Transformers format, or a hub id ORGANIZATION/NAME[@REVISION]"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser("import", description="Converts a checkpoint of NeMo or Transformers to a bundle.")
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"{_ACCEPTED}; it is read as untrusted data",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="bundle to write: a new or empty directory")
    parser.add_argument(
        "--format", choices=("transformers", "nemo"), help="of a hub repository that has both (default: transformers)"
    )
    parser.add_argument("--half", action="store_true", help="store the weights as float16")
    parser.add_argument(
        "--precision",
        choices=("float32", "int8"),
        default="float32",
        help="int8: store the large products of the encoder (of a speaker model: of its layers) in int8, for CPUs; "
        "SOURCE may then be a bundle, too",
    )
    parser.add_argument(
        "--language",
        action="append",
        default=[],
        metavar="CODE",
        help="a language that the model recognizes, as in `language` of its model card, which it replaces; repeatable; "
        "SOURCE may then be a bundle, too",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Converts the checkpoint and prints the bundle's properties."""
    from penstock.model.card import card_languages
    from penstock.speakers.bundle import SpeakerCheckpoint

    checkpoint = _import(args)
    if isinstance(checkpoint, SpeakerCheckpoint):
        config = checkpoint.config
        print(
            f"{args.directory}: {checkpoint.source['class']}, {config.n_layers} layers of {config.d_model}, "
            f"at most {config.speakers} speakers, live with {', '.join(config.live_steps)}"
        )
        return 0
    encoder, transducer = checkpoint.config.encoder, checkpoint.config.transducer
    kind = checkpoint.config.head_name
    if transducer is not None and transducer.is_tdt:
        kind = kind.replace("TDT", f"TDT {list(transducer.tdt_durations)}")
    contexts = "offline" if encoder.is_offline else f"contexts {' '.join(map(str, encoder.contexts))}"
    prompt = checkpoint.config.prompt
    count = len(prompt.languages if prompt else card_languages(checkpoint.directory))
    languages = f", {count} languages" if count > 1 else "" if count else ", of no known language (--language)"
    end_tokens = ", end tokens" if checkpoint.config.end_tokens else ""
    print(
        f"{args.directory}: {checkpoint.source['class']}, {kind}, {encoder.n_layers} layers of {encoder.d_model}, "
        f"{checkpoint.config.vocabulary_size} tokens, {contexts}{languages}{end_tokens}"
    )
    return 0


def _import(args: argparse.Namespace) -> "Checkpoint | SpeakerCheckpoint":
    from penstock.model.bundle import Checkpoint
    from penstock.model.bundle_files import CONFIG_FILE, SPEAKERS_FORMAT, WEIGHTS_FILE
    from penstock.model.card import check_languages
    from penstock.model.foreign import reject_foreign
    from penstock.model.hub import fetch, parse_source
    from penstock.model.nemo.importer import import_nemo  # here, because these import torch
    from penstock.model.transformers.files import SPEAKER_MODEL_TYPE, model_type, read_json
    from penstock.model.transformers.importer import import_transformers
    from penstock.speakers.importer import convert_to_int8, import_speakers

    check_languages(args.language)  # before a download
    path, origin, is_changed = Path(args.source), {}, bool(args.language) or args.precision == "int8"
    try:
        exists = path.exists()
        if exists:
            reject_foreign(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    hub_source = None if exists else parse_source(args.source)
    if hub_source is not None:
        fetched = fetch(hub_source, args.format)
        path, origin = fetched.path, fetched.origin
    elif args.format:
        raise SettingError("--format: only a repository on the hub has several formats; accepted: with a hub id")
    elif not exists:
        raise ModelNotFoundError(f"{path}: no such file or directory; accepted: {_ACCEPTED}")
    if all((path / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE)):
        if not is_changed:
            raise CheckpointError(f"{path}: is a bundle already; use it with --model {path}")
        if args.half:
            raise SettingError("--half: of a bundle only large products of the encoder change; accepted: with others")
        if read_json(path / CONFIG_FILE).get("format") == SPEAKERS_FORMAT:
            _check_no_language(args, "a speaker model")
            return convert_to_int8(path, args.directory, args.force)
        return _import_changed(args, lambda directory: Checkpoint(copytree(Checkpoint(path).directory, directory)))
    if path.is_dir() and model_type(path) == SPEAKER_MODEL_TYPE:
        _check_no_language(args, "a speaker model")
        is_int8 = args.precision == "int8"
        return import_speakers(path, args.directory, args.half, args.force, origin, is_int8)
    import_checkpoint = partial(
        import_transformers if path.is_dir() else import_nemo, path, half=args.half, origin=origin
    )
    if is_changed:
        return _import_changed(args, lambda directory: import_checkpoint(directory, replace=False))
    return import_checkpoint(args.directory, replace=args.force)


def _import_changed(args: argparse.Namespace, convert: Callable[[Path], "Checkpoint"]) -> "Checkpoint":
    """convert: writes the bundle with floating weights to a new directory."""
    from penstock.encoder.precision import store_int8
    from penstock.model.card import CARD_FILE, write_languages
    from penstock.model.new_bundle import write_new_bundle

    def change(scratch: Path) -> Path:
        checkpoint = convert(scratch / "bundle")
        if checkpoint.config.prompt:
            _check_no_language(args, "a model with language prompts")
        if args.language:
            replaced, card = args.directory / CARD_FILE, checkpoint.directory / CARD_FILE
            if args.force and replaced.is_file() and not card.exists():
                copyfile(replaced, card)
            write_languages(checkpoint.directory, args.language)
        return (store_int8(checkpoint) if args.precision == "int8" else checkpoint).directory

    return write_new_bundle(args.directory, args.force, change)


def _check_no_language(args: argparse.Namespace, model: str) -> None:
    if args.language:
        raise SettingError(f"--language is {args.language[0]}, but this is {model}; accepted: without it")
