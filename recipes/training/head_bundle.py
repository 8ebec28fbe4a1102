"""Writes a bundle that has another bundle's front end, encoder and CTC head, and a new Transducer head."""

import dataclasses
from pathlib import Path

from penstock.model.bundle import Checkpoint, write_checkpoint
from penstock.model.config import IlmPair
from penstock.model.new_bundle import write_new_bundle
from recipes.training.head import TransducerHead


def write_head_bundle(
    directory: Path,
    encoder: Checkpoint,
    head: TransducerHead,
    source: dict[str, str],
    *,
    beam_pair: IlmPair | None = None,
    greedy_pair: IlmPair | None = None,
    half: bool = False,
    replace: bool = False,
) -> Checkpoint:
    """Writes `directory`, at once or not at all.

    beam_pair, greedy_pair: defaults of a factorized head's streams, by default those of its configuration. source: of
    the model, for config.json. half: store float16, except for `features.`. replace: as in `write_new_bundle`; no model
    card is kept. Raises CheckpointError.
    """
    config = head.config
    if head.ilm is not None:
        config = dataclasses.replace(
            config, ilm_beam=beam_pair or config.ilm_beam, ilm_greedy=greedy_pair or config.ilm_greedy
        )
    model = dataclasses.replace(encoder.config, transducer=config)
    tensors = encoder.tensors("features.", "encoder.", "ctc.")
    tensors |= {name: tensor.cpu() for name, tensor in head.tensors().items()}
    if half:
        tensors = {name: t if name.startswith("features.") else t.half() for name, t in tensors.items()}
    tokenizer = encoder.tokenizer_path.read_bytes()

    def convert(scratch: Path) -> Path:
        return write_checkpoint(scratch / "bundle", model, tensors, tokenizer, source).directory

    return write_new_bundle(directory, replace, convert, keeps_card=False)
