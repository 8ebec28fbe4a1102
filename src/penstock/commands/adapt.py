"""`penstock adapt`: adapts the internal language model of a factorized transducer to a domain, from text."""

import argparse
import math
import os
import sys
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.commands.lm import MATCH_HINT, open_checkpoint, warn_of_unknown
from penstock.errors import CheckpointError, CorpusError, SettingError

if TYPE_CHECKING:
    import torch

    from penstock.adaptation.ilm import InternalLm, Sentence
    from penstock.model.bundle import Checkpoint

    Tensors = dict[str, torch.Tensor]

_STANDARD_INPUT = "-"
_TEXTS = ("text", "keep", "heldout")
_SAMPLED_SENTENCES = 4000
_MAX_SEED = 2**32 - 1
_DIGEST = "adapted_"
"""Begins the keys of config.json's `source` that this command writes."""
_WORD_BOUNDARY = "\u2581"
"""The piece that stands in front of an unknown word."""


class _Text(NamedTuple):
    """A text in labels."""

    name: str
    sentences: "list[Sentence]"
    sha256: str


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "adapt",
        description="Trains the internal language model of a factorized transducer on text. All other weights stay. "
        "Every tenth sentence is held out; the step with the best perplexity on them is written.",
    )
    parser.add_argument("--model", default=os.environ.get("PENSTOCK_MODEL"), help="bundle of a factorized transducer")
    parser.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text, one sentence per line; -: stdin")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="bundle to write: new or empty")
    parser.add_argument(
        "--keep", metavar="FILE", help="text of what the model must not forget (default: sampled from the model)"
    )
    parser.add_argument("--heldout", metavar="FILE", help="held-out text, instead of every tenth sentence of --text")
    parser.add_argument("--steps", type=int, default=600, metavar="N", help="of 64 sentences (600)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of sentences (0)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (cpu)")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle and its model card")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the perplexities before and after. Nothing is written unless the held-out text's is better."""
    _check(args)
    from penstock.model.bundle import write_checkpoint
    from penstock.model.bundle_files import CONFIG_FILE, sha256_of
    from penstock.model.card import card_languages, write_languages
    from penstock.model.new_bundle import check_new_bundle, write_new_bundle
    from penstock.runtime import check_device, prepare_device, prepare_process

    check_device(args.device, "--device")
    prepare_process(threads=1)  # the products of a step are small
    device = prepare_device(args.device)
    checkpoint = _open_model(args.model)
    check_new_bundle(args.out, args.force)
    texts = _read_texts(args, checkpoint)
    tensors, lines = _adapt(args, checkpoint, texts, device)
    source = {n: value for n, value in checkpoint.source.items() if not n.startswith(_DIGEST)}
    # The model is named by its config.json, which has the digests of its other files.
    source[f"{_DIGEST}from_config_sha256"] = sha256_of(checkpoint.directory / CONFIG_FILE)
    source |= {f"{_DIGEST}{name}_sha256": text.sha256 for name, text in texts.items()}

    def write(scratch: Path) -> Path:
        bundle = scratch / "bundle"
        write_checkpoint(bundle, checkpoint.config, tensors, checkpoint.tokenizer_path.read_bytes(), source)
        if languages := card_languages(checkpoint.directory):
            write_languages(bundle, languages)
        return bundle

    write_new_bundle(args.out, args.force, write, keeps_card=False)  # the card is that of the old weights
    print("\n".join(lines))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.steps < 1:
        raise SettingError(f"--steps is {args.steps}, expected a positive number")
    if not 0 <= args.seed <= _MAX_SEED:
        raise SettingError(f"--seed is {args.seed}, expected 0 to {_MAX_SEED}")
    piped = [name for name in _TEXTS if getattr(args, name) == _STANDARD_INPUT]
    if len(piped) > 1:
        raise SettingError(f"--{piped[0]} - and --{piped[1]} -: standard input can be read once only")


def _open_model(model: str | None) -> "Checkpoint":
    checkpoint = open_checkpoint(model)
    transducer = checkpoint.config.transducer
    if transducer is None or not transducer.is_factorized:
        raise CheckpointError(
            f"{checkpoint.directory}: has no internal language model ({checkpoint.config.head_name}); accepted: a "
            "factorized transducer. For this model use penstock lm build"
        )
    return checkpoint


def _read_texts(args: argparse.Namespace, checkpoint: "Checkpoint") -> dict[str, _Text]:
    """The texts that are given, by the names of `_TEXTS`."""
    from penstock.adaptation.ilm import HELD_OUT_EVERY

    texts = {name: _read(source, checkpoint) for name in _TEXTS if (source := getattr(args, name)) is not None}
    for name, alternative in (("text", ", or --heldout"), ("keep", "")):
        is_divided = name in texts and (name == "keep" or "heldout" not in texts)
        if is_divided and len(texts[name].sentences) < HELD_OUT_EVERY:
            raise CorpusError(
                f"{texts[name].name}: {len(texts[name].sentences)} sentences; accepted: at least {HELD_OUT_EVERY}, of "
                f"which every tenth is held out{alternative}"
            )
    return texts


def _read(source: str, checkpoint: "Checkpoint") -> _Text:
    from penstock.scoring.ngram.estimation.text import TextTokenizer

    name = "standard input" if source == _STANDARD_INPUT else source
    tokenizer = TextTokenizer(checkpoint.tokenizer_path, checkpoint.config.textless_labels)
    sentences: list[Sentence] = list(tokenizer.read([source]))
    if not sentences:
        raise CorpusError(f"{name}: there is no text")
    uninformative = {
        tokenizer.names.unknown_label,
        *(i for i, piece in enumerate(tokenizer.names.pieces) if piece == _WORD_BOUNDARY),
    }
    if all(uninformative.issuperset(sentence) for sentence in sentences):
        raise CorpusError(f"{name}: no sentence has a token that the model's tokenizer knows: {MATCH_HINT}")
    warn_of_unknown(tokenizer, f"{name}: ")
    return _Text(name, sentences, tokenizer.sha256)


class _Domain(NamedTuple):
    """The new or the old domain."""

    name: str
    sentences: "list[Sentence]"
    held_out: "list[Sentence]"


def _split(name: str, sentences: "list[Sentence]") -> _Domain:
    from penstock.adaptation.ilm import every_tenth_held_out

    return _Domain(name, *every_tenth_held_out(sentences))


def _adapt(
    args: argparse.Namespace, checkpoint: "Checkpoint", texts: dict[str, _Text], device: "torch.device"
) -> "tuple[Tensors, list[str]]":
    """All tensors of the new bundle, and what to print."""
    from penstock.adaptation.ilm import PREFIX, IlmTraining, InternalLm, perplexity, train_ilm

    if checkpoint.int8:
        raise CheckpointError(f"{checkpoint.directory}: is stored in int8; accepted: a bundle with floating weights")
    stored = checkpoint.tensors(as_stored=True)
    ilm = InternalLm.from_tensors(stored).to(device)
    text, held_out, keep = texts["text"], texts.get("heldout"), texts.get("keep")
    if held_out is None:
        new = _split(text.name, text.sentences)
    else:
        new = _Domain(held_out.name, text.sentences, held_out.sentences)
    if not math.isfinite(held_out_perplexity := perplexity(ilm, new.held_out)):
        raise CheckpointError(
            f"{checkpoint.directory}: the perplexity of the held-out text is {held_out_perplexity}; nothing is written"
        )
    old = _sampled(ilm, new, args.seed) if keep is None else _split(keep.name, keep.sentences)
    # 1) train
    before = [perplexity(ilm, domain.held_out) for domain in (new, old)]
    config = IlmTraining(steps=args.steps, seed=args.seed)
    trained = train_ilm(ilm, new.sentences, new.held_out, config, old.sentences, partial(_report, args.steps))
    # 2) measure what will be written, which may be float16
    stored |= {n: tensor.to("cpu", stored[n].dtype) for n, tensor in ilm.tensors().items()}
    ilm.load_tensors({n: tensor for n, tensor in stored.items() if n.startswith(PREFIX)})
    after = [perplexity(ilm, domain.held_out) for domain in (new, old)]
    if not after[0] < before[0]:  # also for NaN
        raise CorpusError(
            f"{text.name}: the perplexity of the held-out text, {before[0]:.4g}, did not improve in "
            f"{args.steps} steps; nothing is written"
        )
    lines = [f"{args.out}: adapted to {len(new.sentences)} sentences, step {trained.best_step} of {args.steps}"]
    for domain, old_value, new_value in zip((new, old), before, after, strict=True):
        lines.append(
            f"perplexity {old_value:.4g} before, {new_value:.4g} after: {len(domain.held_out)} held-out sentences, "
            f"{domain.name}"
        )
    return stored, lines


def _sampled(ilm: "InternalLm", new: _Domain, seed: int) -> _Domain:
    """Sentences that the model itself produces, of the lengths of the new domain's."""
    from penstock.adaptation.ilm import divided, sample_sentences

    lengths = [len(sentence) for sentence in islice(cycle(divided(new.sentences)), _SAMPLED_SENTENCES)]
    return _split("sampled from the model", list(sample_sentences(ilm, lengths, seed)))


def _report(steps: int, step: int, perplexity: float) -> None:
    print(f"step {step} of {steps}: perplexity {perplexity:.4g}", file=sys.stderr, flush=True)
