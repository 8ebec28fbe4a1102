"""`penstock transcribe`: audio files to text in this process, streaming, without a server."""

import argparse
import json
import os
import sys
from pathlib import Path

from penstock import settings
from penstock.errors import PenstockError

_DECODING_FLAGS = (
    (settings.LM_FUSION, "NAME", "how a language model enters beam search"),
    (settings.LENGTH_NORMALISATION, None, "rank hypotheses by score / (labels + 1), the default"),
    (settings.AES_EXPANSIONS, "N", "labels of a hypothesis of aes at one frame"),
    (settings.AES_MARGIN, "NATS", "expansions of aes that much below the best are pruned"),
    (settings.AES_EXTRA_LABELS, "N", "labels beyond the beam size that aes tries"),
    (settings.MAX_SYMBOLS, "N", "labels at one frame, of greedy and alsd; without it the checkpoint's"),
)


def add_parser(subparsers) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser("transcribe", help="transcribe audio files in this process, as a stream")
    parser.add_argument("audio", nargs="*", metavar="AUDIO", help="wav, flac or ogg files")
    parser.add_argument("--from-manifest", metavar="FILE", help="NeMo manifest with the audio files (JSON lines)")
    parser.add_argument("--model", default=os.environ.get("PENSTOCK_MODEL"), help="bundle, .nemo file or hub id")
    parser.add_argument("--context", metavar="L,R", help="attention context in encoder frames, for example 70,6")
    parser.add_argument("--piece-ms", type=float, default=100.0, metavar="N", help="audio pushed at once (100)")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="files streamed at once (8)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (1)")
    parser.add_argument("--decoder", default="greedy", metavar="NAME", help="greedy, alsd or aes (greedy)")
    parser.add_argument("--beam-size", type=int, metavar="K", help="hypotheses of alsd or aes (4)")
    parser.add_argument("--n-best", type=int, metavar="N", help="alternatives in the JSON output, with alsd or aes")
    parser.add_argument("--lm", metavar="FILE", help="n-gram language model, as `penstock lm build` makes it")
    parser.add_argument("--lm-weight", type=float, default=0.0, metavar="W", help="weight of the language model (0)")
    for setting, metavar, about in _DECODING_FLAGS:
        if metavar is None:
            parser.add_argument(setting.flag, action=argparse.BooleanOptionalAction, help=about)
            continue
        default = "" if setting.default is None else f" ({setting.default})"
        parser.add_argument(setting.flag, metavar=metavar, help=f"{about}: {setting.accepted}{default}")
    parser.add_argument("--boost-phrase", action="append", default=[], metavar="TEXT", help="repeatable")
    parser.add_argument("--boost", type=float, metavar="B", help="bonus a token of a boosted phrase, in nats (2)")
    parser.add_argument("--json", action="store_true", help="one JSON object a file, with tokens and word times")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Transcribes each file; a file that fails is named on stderr, and the others are still done."""
    from penstock.cpu import prepare_process
    from penstock.decoding_config import DecodingConfig
    from penstock.file_transcriber import FileTranscriber
    from penstock.recognizer import StreamingRecognizer
    from penstock.settings import parse_context
    from penstock.stream_options import parse_stream_options

    _check(args)
    paths = args.audio + (_manifest_paths(Path(args.from_manifest)) if args.from_manifest else [])
    if not paths:
        raise PenstockError("no audio: name files, or a manifest with --from-manifest")
    prepare_process(args.threads)
    context = parse_context(args.context) if args.context else None
    chosen = {setting.name: setting.read({}, settings.given_text(args, setting)) for setting, *_ in _DECODING_FLAGS}
    beam_size = DecodingConfig.beam_size if args.beam_size is None else args.beam_size
    decoding = DecodingConfig(args.lm, args.lm_weight, beam_size, **chosen)
    options = _stream_options(args)
    parse_stream_options(options, decoding)
    recognizer = StreamingRecognizer(args.model, context, max_streams=args.streams, decoding=decoding)
    piece_samples = max(1, round(args.piece_ms * recognizer.sample_rate_hz / 1000))
    failures = 0
    for transcript in FileTranscriber(recognizer, piece_samples, options).transcribe(paths):
        if transcript.error:
            failures += 1
            print(f"penstock: error: {transcript.error}", file=sys.stderr, flush=True)
        elif args.json:
            print(json.dumps(_document(transcript), ensure_ascii=False), flush=True)
        else:
            print(f"{transcript.audio}: {transcript.text}" if len(paths) > 1 else transcript.text, flush=True)
    return 1 if failures else 0


def _check(args: argparse.Namespace) -> None:
    if not args.model:
        raise PenstockError("--model is missing: a bundle directory, a .nemo file or a hub id")
    for name in ("piece_ms", "streams", "threads"):
        if not getattr(args, name) > 0:
            raise PenstockError(f"--{name.replace('_', '-')} is {getattr(args, name)}, expected a positive number")
    if args.piece_ms > 30000:
        raise PenstockError(f"--piece-ms is {args.piece_ms:g}, at most 30000")


def _stream_options(args: argparse.Namespace) -> dict:
    """Of every file's stream; `penstock.stream_options` checks them."""
    options = {"decoder": args.decoder, "beam_size": args.beam_size, "n_best": args.n_best, "boost": args.boost}
    options["boosted_phrases"] = args.boost_phrase or None
    return {name: value for name, value in options.items() if value is not None}


def _manifest_paths(manifest: Path) -> list[str]:
    """Paths of a manifest's audio; relative ones are taken from the manifest's folder."""
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
        return [str(manifest.parent / json.loads(line)["audio_filepath"]) for line in lines if line.strip()]
    except OSError as error:
        raise PenstockError(f"{manifest}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PenstockError(f"{manifest}: not a manifest, JSON lines with audio_filepath expected: {error}") from error


def _document(transcript) -> dict:
    return {
        "audio": transcript.audio,
        "text": transcript.text,
        "tokens": [token.id for token in transcript.tokens],
        "timestamps": [token.timestamp for token in transcript.tokens],
        "words": [
            {"word": w.text, "start_ms": w.start_ms, "end_ms": w.end_ms, "confidence": round(w.confidence, 4)}
            for w in transcript.words
        ],
        "alternatives": [{"text": a.text, "score": a.score} for a in transcript.alternatives],
        "audio_s": transcript.audio_s,
    }
