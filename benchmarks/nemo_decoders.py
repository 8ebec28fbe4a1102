"""NeMo's decoders as baselines, with the weights of a Penstock checkpoint. Imports NeMo.

NeMo's modules are built from the checkpoint's configuration and get its tensors, so both sides compute with the same
numbers. Only greedy label-looping can continue a stream exactly; all others get whole utterances.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from nemo.collections.asr.modules import RNNTDecoder, RNNTJoint
from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel
from nemo.collections.asr.parts.submodules.rnnt_greedy_decoding import GreedyBatchedRNNTInfer, GreedyBatchedTDTInfer
from nemo.collections.asr.parts.submodules.rnnt_maes_batched_computer import ModifiedAESBatchedRNNTComputer
from nemo.collections.asr.parts.submodules.rnnt_malsd_batched_computer import ModifiedALSDBatchedRNNTComputer
from nemo.collections.asr.parts.submodules.tdt_malsd_batched_computer import ModifiedALSDBatchedTDTComputer
from nemo.utils import logging as nemo_logging

from benchmarks.systems import (
    AES,
    ALSD,
    CHUNKS,
    FRAME_LOOPING,
    LABEL_LOOPING,
    NEMO,
    WHOLE,
    Chunk,
    Selection,
    System,
    Unavailable,
    Variant,
)
from penstock.decoding.sizes import AesLimits
from penstock.model.bundle import Checkpoint
from penstock.model.config import TransducerConfig

nemo_logging.setLevel(logging.ERROR)


class NemoLabelLooping(System):
    """`greedy_batch` with loop_labels, without building hypothesis objects."""

    def __init__(self, variant: Variant, computer: Any):
        super().__init__(variant)
        self._computer = computer

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Labels and their number for each chunk."""
        state, found = None, []
        for chunk in chunks:
            hyps, state = self._computer(x=chunk.frames, out_len=chunk.lengths, prev_batched_state=state)
            found.append((hyps.transcript.cpu(), hyps.current_lengths.cpu()))
        return found


class NemoWhole(System):
    """A decoder of whole utterances, whose hypotheses are on the host when it ends."""

    def __init__(self, variant: Variant, decode: Callable[[Chunk], list]):
        super().__init__(variant)
        self._decode = decode

    @torch.inference_mode()
    def decode(self, chunks: list[Chunk]) -> list:
        """NeMo's hypotheses."""
        (chunk,) = chunks
        return self._decode(chunk)

    def labels(self, decoded: list) -> list[list[int]]:
        """Labels of each."""
        return [torch.as_tensor(hypothesis.y_sequence).tolist() for hypothesis in decoded]


def _frame_looping(infer: GreedyBatchedRNNTInfer) -> Callable[[Chunk], list]:
    """`greedy_batch` without loop_labels, which builds its hypotheses while decoding."""
    return lambda chunk: infer(encoder_output=chunk.frames.transpose(1, 2), encoded_lengths=chunk.lengths)[0]


def _beam(computer: Any) -> Callable[[Chunk], list]:
    """`malsd_batch` or `maes_batch`; the best hypothesis of each stream is copied to the host."""
    return lambda chunk: computer(chunk.frames, chunk.lengths)[0].to_hyps_list(score_norm=True)


class NemoLm(NamedTuple):
    """A language model for NeMo's searches, which they combine by eq. 3 with late pruning as ours by default."""

    arpa: Path
    """In NeMo's spelling of labels."""
    weight: float


def nemo_systems(
    checkpoint: Checkpoint, selection: Selection, lm: NemoLm | None = None
) -> Iterator[System | Unavailable]:
    """The selected decoders that NeMo has, eager and with its CUDA graphs; with a language model if there is one."""
    config = checkpoint.config.transducer
    parts, named = _Parts(checkpoint, selection.device, lm), partial(Variant, NEMO, has_lm=lm is not None)
    drivers = ("no_graphs", "graphs") if selection.device.startswith("cuda") else ("no_graphs",)
    if config.is_factorized:
        yield Unavailable(named(LABEL_LOOPING, drivers[0], span=WHOLE), "NeMo has no factorized transducer")
        return
    for decoder in selection.decoders:
        for driver in drivers:
            has_graphs = driver == "graphs"
            if decoder == LABEL_LOOPING:
                for span in (CHUNKS, WHOLE):
                    variant = named(decoder, driver, span=span)
                    yield _try(variant, lambda e, g=has_graphs: NemoLabelLooping(e, parts.greedy(True, g)))
            elif decoder == FRAME_LOOPING:
                variant = named(decoder, driver, span=WHOLE)
                if config.is_tdt:
                    yield Unavailable(variant, "NeMo has no batched frame-looping for TDT")
                else:
                    yield _try(variant, lambda e, g=has_graphs: NemoWhole(e, _frame_looping(parts.greedy(False, g))))
            else:
                yield from _beams(parts, decoder, driver, selection)


def _beams(parts: "_Parts", decoder: str, driver: str, selection: Selection) -> Iterator[System | Unavailable]:
    for beam in selection.beams:
        variant = Variant(NEMO, decoder, driver, beam, span=WHOLE, has_lm=parts.has_lm)
        if decoder == AES and (parts.config.is_tdt or driver == "graphs"):
            yield Unavailable(variant, f"NeMo's maes_batch has no {'TDT' if parts.config.is_tdt else 'CUDA graphs'}")
            continue
        if decoder == AES and parts.has_lm:
            yield Unavailable(variant, "not set up with a language model")
            continue
        make = parts.alsd if decoder == ALSD else parts.aes
        yield _try(variant, lambda e, m=make, g=driver == "graphs": NemoWhole(e, _beam(m(e.beam, g))))


def _try(variant: Variant, make: Callable[[Variant], System]) -> System | Unavailable:
    try:
        return make(variant)
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return Unavailable(variant, f"NeMo rejects it: {error}")


class _Parts:
    """NeMo's predictor and joint with a checkpoint's weights, and decoders over them."""

    def __init__(self, checkpoint: Checkpoint, device: str, lm: NemoLm | None = None):
        self.config = checkpoint.config.transducer
        self.has_lm = lm is not None
        self._fusion: dict[str, Any] = {}
        if lm is not None:
            model = NGramGPULanguageModel.from_file(lm.arpa, self.config.vocabulary_size, use_triton=False).to(device)
            self._fusion = {"fusion_models": [model], "fusion_models_alpha": [lm.weight]}
        tensors = checkpoint.tensors("predictor.", "joint.")
        self._common = {
            "decoder": _predictor(self.config, tensors).to(device).eval(),
            "joint": _joint(self.config, tensors).to(device).eval(),
            "blank_index": self.config.vocabulary_size,
        }

    def greedy(self, loops_over_labels: bool, has_graphs: bool) -> Any:
        """The computer of label-looping, or all of `greedy_batch` with frame-looping."""
        config = self.config
        modules = {"decoder_model": self._common["decoder"], "joint_model": self._common["joint"]}
        options = modules | {
            "blank_index": config.vocabulary_size,
            "max_symbols_per_step": config.max_symbols,
            "use_cuda_graph_decoder": has_graphs,
            **self._fusion,
        }
        if config.is_tdt:
            return GreedyBatchedTDTInfer(durations=list(config.tdt_durations), **options).decoding_computer
        infer = GreedyBatchedRNNTInfer(loop_labels=loops_over_labels, **options)
        return infer.decoding_computer if loops_over_labels else infer

    def alsd(self, beam: int, has_graphs: bool) -> Any:
        """`malsd_batch`."""
        options = {"beam_size": beam, "max_symbols_per_step": self.config.max_symbols, "allow_cuda_graphs": has_graphs}
        if self.has_lm:
            options |= self._fusion | {"pruning_mode": "late", "blank_lm_score_mode": "lm_weighted_full"}
        if self.config.is_tdt:
            durations = list(self.config.tdt_durations)
            return ModifiedALSDBatchedTDTComputer(durations=durations, **self._common, **options)
        return ModifiedALSDBatchedRNNTComputer(**self._common, **options)

    def aes(self, beam: int, has_graphs: bool) -> Any:
        """`maes_batch` with our limits."""
        limits = AesLimits()
        return ModifiedAESBatchedRNNTComputer(
            **self._common,
            beam_size=beam,
            maes_num_steps=limits.expansions_per_frame,
            maes_expansion_beta=limits.extra_labels,
            maes_expansion_gamma=limits.margin,
            allow_cuda_graphs=has_graphs,
        )


def _predictor(config: TransducerConfig, tensors: dict[str, torch.Tensor]) -> RNNTDecoder:
    sizes = {"pred_hidden": config.predictor_hidden, "pred_rnn_layers": config.predictor_layers, "dropout": 0.0}
    module = RNNTDecoder(prednet=sizes, vocab_size=config.vocabulary_size, blank_as_pad=True)
    _fill(module.prediction["embed"].weight, tensors["predictor.embedding.weight"])
    lstm = module.prediction["dec_rnn"].lstm
    for layer in range(config.predictor_layers):
        for theirs, ours in (("weight_ih", "input_weight"), ("weight_hh", "hidden_weight"),
                             ("bias_ih", "input_bias"), ("bias_hh", "hidden_bias")):  # fmt: skip
            _fill(getattr(lstm, f"{theirs}_l{layer}"), tensors[f"predictor.lstm.{layer}.{ours}"])
    return module


def _joint(config: TransducerConfig, tensors: dict[str, torch.Tensor]) -> RNNTJoint:
    module = RNNTJoint(
        jointnet={
            "encoder_hidden": tensors["joint.encoder.weight"].shape[1],
            "pred_hidden": config.predictor_hidden,
            "joint_hidden": config.joint_hidden,
            "activation": config.joint_activation,
            "dropout": 0.0,
        },
        num_classes=config.vocabulary_size,
        num_extra_outputs=len(config.tdt_durations),
    )
    for theirs, ours in ((module.enc, "encoder"), (module.pred, "predictor"), (module.joint_net[-1], "output")):
        _fill(theirs.weight, tensors[f"joint.{ours}.weight"])
        _fill(theirs.bias, tensors[f"joint.{ours}.bias"])
    return module


@torch.no_grad()
def _fill(parameter: torch.Tensor, values: torch.Tensor) -> None:
    if parameter.shape != values.shape:  # copy_ would broadcast
        raise ValueError(f"a parameter of NeMo's has shape {tuple(parameter.shape)}, ours {tuple(values.shape)}")
    parameter.copy_(values)
