"""NeMo's modules with Penstock's weights find Penstock's labels."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

from benchmarks.nemo_decoders import nemo_systems
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import KINDS, TRANSDUCERS, TransducerSizes
from benchmarks.systems import CHUNKS, DECODERS, WHOLE, Selection, Unavailable, random_workload, split_chunks
from penstock.model.bundle import Checkpoint

pytestmark = pytest.mark.oracle


def decoded(systems, encoded) -> dict:
    inputs = {CHUNKS: split_chunks(encoded, 6), WHOLE: split_chunks(encoded, encoded.shape[1])}
    found = [one for one in systems if not isinstance(one, Unavailable)]
    return {one.variant: one.labels(one.decode(inputs[one.variant.span])) for one in found}


def compare(checkpoint: Checkpoint, encoded) -> set[str]:
    selection = Selection(DECODERS, (1, 2, 4), (WHOLE,), "cpu", len(encoded), 6)
    expected = {
        (variant.decoder, variant.beam): labels
        for variant, labels in decoded(penstock_systems(checkpoint, selection), encoded).items()
    }
    found = decoded(nemo_systems(checkpoint, selection), encoded)
    for variant, labels in found.items():
        if variant.decoder == "aes":
            continue  # NeMo's keeps its flags by place: docs/beam_search.md
        assert labels == expected[variant.decoder, variant.beam], variant
    assert sum(map(len, expected["label-looping", None])) > 10
    return {f"{variant.decoder} {variant.span}" for variant in found}


@pytest.mark.parametrize("kind", KINDS)
def test_random_weights(kind, monkeypatch):
    monkeypatch.setitem(TRANSDUCERS, "tiny", TransducerSizes(8, 16, 12))
    workload = random_workload(kind, "tiny", 4, 3.0, "cpu")
    found = compare(workload.checkpoint, workload.encoded)
    both = {"label-looping chunks", "label-looping whole", "alsd whole"}
    assert found == (both if kind == "tdt" else both | {"frame-looping whole", "aes whole"})
