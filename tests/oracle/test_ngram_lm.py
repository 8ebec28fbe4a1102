"""The automaton against NeMo's NGramGPULanguageModel on a file in NeMo's spelling: every state, every label."""

import pytest

pytest.importorskip("nemo.collections.asr", reason="needs the extra `oracle`")

import gzip

import torch
from nemo.collections.asr.parts.submodules.ngram_lm import NGramGPULanguageModel

from penstock.scoring.ngram.io import NEMO_TOKEN_OFFSET, load_ngram_lm
from tests.helpers.ngram_golden import LABELS, NAMES, arpa_path

pytestmark = pytest.mark.oracle


def spell_as_nemo(name: str) -> str:
    """NeMo wants every line's fields apart by tabs, and nothing else in the file."""
    lines = []
    for line in gzip.decompress(arpa_path(name).read_bytes()).decode().splitlines():
        if "\t" in line:
            probability, ngram, *backoff = line.split("\t")
            words = [
                chr(LABELS[word] + NEMO_TOKEN_OFFSET) if word in NAMES.pieces[1:] else word for word in ngram.split()
            ]
            line = "\t".join([probability, " ".join(words), *backoff])
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", ["2", "3", "4_pruned", "6_pruned"])
def test_every_path_scores_as_nemo(name, tmp_path):
    path = tmp_path / "nemo.arpa"
    path.write_text(spell_as_nemo(name), encoding="utf-8")
    nemo = NGramGPULanguageModel.from_file(path, len(NAMES.pieces), normalize_unk=False, use_triton=False)
    ours = load_ngram_lm(path, NAMES)
    draw = torch.Generator().manual_seed(0)
    states = torch.full((200,), ours.start_state)
    nemo_states = nemo.get_init_states(200, bos=True)
    for _ in range(30):
        with torch.inference_mode():
            nemo_scores, nemo_next = nemo.advance(nemo_states)
            torch.testing.assert_close(ours.score_all(states).scores, nemo_scores, rtol=0, atol=1e-4)
            torch.testing.assert_close(ours.final_scores(states), nemo.get_final(nemo_states), rtol=0, atol=1e-4)
        likely = ours.score_all(states).scores.exp() + 0.01
        labels = torch.multinomial(likely, 1, generator=draw).squeeze(1)
        states = ours.advance(states, labels).next_states
        nemo_states = nemo_next.gather(1, labels.unsqueeze(1)).squeeze(1)
    assert len(states.unique()) > 10
