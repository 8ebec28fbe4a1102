"""Opens and stores a speaker model in float32 or int8, with the products of the recognizers' encoders."""

import torch

from penstock.encoder.int8_choice import Int8Choice, speech_mel
from penstock.encoder.precision import INT8, LEAST_BITS, check_storable, has_int8, is_used, quantized
from penstock.speakers.bundle import SpeakerCheckpoint, write_speaker_checkpoint
from penstock.speakers.network import SpeakerNetwork

_WHAT = "speakers"
_TENSORS = {
    "inputs": ("attention.query", "attention.key", "attention.value"),
    "out": ("attention.out",),
    "up": ("feed_forward.up",),
    "down": ("feed_forward.down",),
}
"""Of each product of a layer."""


@torch.no_grad()
def open_network(checkpoint: SpeakerCheckpoint, precision: str = "float32") -> SpeakerNetwork:
    """Opens the network on the CPU; precision: INT8, or float32 in any other case.

    A bundle in int8 is int8 in any case. Embedding and head are float32: they are 2 % of the products of a step.
    """
    if (checkpoint.int8 or precision == INT8) and has_int8(_WHAT):
        int8 = Int8Choice(checkpoint, tensor_names=_tensor_names)
        speech = speech_mel(checkpoint) if int8.needs_speech else None
        network = SpeakerNetwork(checkpoint.config, checkpoint.tensors(), int8=int8, speech=speech)
        is_used(int8, what=_WHAT)
        return network
    return SpeakerNetwork(checkpoint.config, checkpoint.tensors())


@torch.no_grad()
def store_int8(checkpoint: SpeakerCheckpoint) -> SpeakerCheckpoint:
    """Rewrites a bundle as `penstock.encoder.precision.store_int8`."""
    check_storable(checkpoint)
    tensors, int8 = checkpoint.tensors(as_stored=True), Int8Choice(bits=LEAST_BITS, tensor_names=_tensor_names)
    SpeakerNetwork(checkpoint.config, checkpoint.tensors(), int8=int8, speech=speech_mel(checkpoint))
    if not is_used(int8, what=_WHAT):
        return checkpoint
    stored = quantized(tensors, int8)
    return write_speaker_checkpoint(checkpoint.directory, checkpoint.config, tensors, checkpoint.source, stored)


def _tensor_names(path: str) -> list[str]:
    """The checkpoint's tensors of a product `layers.I.NAME`."""
    layer, _, name = path.rpartition(".")
    return [f"{layer}.{each}.weight" for each in _TENSORS[name]]
