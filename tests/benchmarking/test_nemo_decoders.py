"""NeMo's modules with our weights find our labels."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

from penstock.benchmarking.contestant import CHUNKS, WHOLE, Absence, cut
from penstock.benchmarking.nemo_decoders import nemo_contestants
from penstock.benchmarking.our_decoders import DECODERS, Wanted, our_contestants
from penstock.benchmarking.random_transducer import KINDS, SIZES, Sizes
from penstock.benchmarking.subject import RandomSizes, random_subject
from penstock.checkpoint import Checkpoint
from penstock.config import AttentionContext
from tests.random_models import random_checkpoint

pytestmark = pytest.mark.oracle


def decoded(contestants, encoded) -> dict:
    inputs = {CHUNKS: cut(encoded, 6), WHOLE: cut(encoded, encoded.shape[1])}
    found = [one for one in contestants if not isinstance(one, Absence)]
    return {one.entry: one.labels(one.decode(inputs[one.entry.span])) for one in found}


def compare(checkpoint: Checkpoint, encoded) -> set[str]:
    wanted = Wanted(DECODERS, (1, 2, 4), (WHOLE,), "cpu", len(encoded), 6)
    ours = {
        (entry.decoder, entry.beam): labels
        for entry, labels in decoded(our_contestants(checkpoint, wanted), encoded).items()
    }
    theirs = decoded(nemo_contestants(checkpoint, wanted), encoded)
    for entry, labels in theirs.items():
        if entry.decoder == "aes":
            continue  # NeMo's keeps its flags by place: docs/beam_search.md
        assert labels == ours[entry.decoder, entry.beam], entry
    assert sum(map(len, ours["label-looping", None])) > 10
    return {f"{entry.decoder} {entry.span}" for entry in theirs}


@pytest.mark.parametrize("kind", KINDS)
def test_random_weights(kind, monkeypatch):
    monkeypatch.setitem(SIZES, "tiny", Sizes(8, 16, 12))
    subject = random_subject(kind, RandomSizes("tiny"), 4, 3.0, AttentionContext(8, 3), "cpu")
    found = compare(subject.checkpoint, subject.encoded)
    both = {"label-looping chunks", "label-looping whole", "alsd whole"}
    assert found == (both if kind == "tdt" else both | {"frame-looping whole", "aes whole"})


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_checkpoints(seed, tmp_path):
    """All activations, one and two layers; few labels: NeMo's frame-looping differs where `max_symbols` is reached."""
    checkpoint = random_checkpoint(tmp_path, seed, blank_rate=0.95)
    subject = random_subject("rnnt", RandomSizes("small"), 4, 3.0, None, "cpu")
    compare(checkpoint, subject.encoded[:, :, : checkpoint.config.encoder.d_model].contiguous())
