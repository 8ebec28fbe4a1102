"""Heads over packed lattice points: against the dense form, the inference networks, and themselves in a batch."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from penstock.model.config import TransducerConfig
from recipes.training import lattice
from recipes.training.heads import FactorizedHead, StandardHead, log_normalizers
from recipes.training.lattice import all_cells, band_cells

D_MODEL, LABELS = 6, 9
STANDARD = TransducerConfig(LABELS, 5, 2, 7, "relu", ())
FACTORIZED = TransducerConfig(LABELS, 5, 2, 7, "tanh", (), kind="factorized")
HEADS = {"standard": lambda: StandardHead(STANDARD, D_MODEL), "factorized": lambda: FactorizedHead(FACTORIZED, D_MODEL)}
FRAME_COUNTS, LABEL_COUNTS = torch.tensor([8, 5]), torch.tensor([3, 4])
ROWS = torch.tensor([1, 0, 1])
"""The utterances of three label sequences."""


def _head(kind: str, seed: int = 0):
    torch.manual_seed(seed)
    return HEADS[kind]().double().eval()


def _input(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    encoded = torch.randn(2, 8, D_MODEL, dtype=torch.float64, generator=random)
    return encoded, torch.randint(0, LABELS, (3, 4), generator=random)


def _dense_log_probability(
    head: FactorizedHead, encoded: torch.Tensor, labels: torch.Tensor, alpha: float
) -> torch.Tensor:
    """One utterance [T, D] with labels [U]: eq. 2 and 4 over [T, U + 1, V], as they are written."""
    last = torch.cat([torch.tensor([LABELS]), labels])
    blank, acoustic = head.blank, head.acoustic(encoded)
    z = blank["output"](torch.tanh(blank["encoder"](encoded)[:, None] + blank["embedding"](last)[None])).squeeze(2)
    ilm = head.ilm(labels[None])[0]
    log_am = torch.log_softmax(acoustic, -1)
    log_nb = torch.log_softmax(log_am[:, None] + alpha * ilm[None], -1)
    scores = torch.log(1 - torch.sigmoid(z))[..., None] + log_nb  # [T, U + 1, V]
    cells = all_cells(torch.tensor([len(encoded)]), torch.tensor([len(labels)]))
    at = cells.frames, cells.places
    return lattice.log_probability(cells, torch.log(torch.sigmoid(z))[at], scores[(*at, cells.labels_of(labels[None]))])


@pytest.mark.parametrize("alpha", [1.0, 0.6, 0.0])
def test_the_factorized_head_equals_the_dense_form(alpha):
    head, (encoded, labels) = _head("factorized"), _input()
    counts = torch.tensor([4, 2, 3])
    found = head.log_probability(encoded, ROWS, labels, all_cells(FRAME_COUNTS[ROWS], counts), alpha)
    found.sum().backward()
    gradients = {name: p.grad.clone() for name, p in head.named_parameters() if p.grad is not None}
    head.zero_grad()
    wanted = torch.cat(
        [
            _dense_log_probability(head, encoded[row, : FRAME_COUNTS[row]], labels[n, : counts[n]], alpha)
            for n, row in enumerate(ROWS)
        ]
    )
    wanted.sum().backward()
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    for name, gradient in gradients.items():
        other = dict(head.named_parameters())[name].grad
        torch.testing.assert_close(gradient, torch.zeros_like(gradient) if other is None else other, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_a_batch_equals_its_rows_alone(kind):
    head, (encoded, labels) = _head(kind, 2), _input(2)
    counts = torch.tensor([4, 0, 3])
    together = head.log_probability(encoded, ROWS, labels, all_cells(FRAME_COUNTS[ROWS], counts))
    for n, row in enumerate(ROWS):
        cells = all_cells(FRAME_COUNTS[row : row + 1], counts[n : n + 1])
        one = encoded[row : row + 1, : FRAME_COUNTS[row]], torch.tensor([0]), labels[n : n + 1, : counts[n]]
        torch.testing.assert_close(together[n : n + 1], head.log_probability(*one, cells), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_a_band_as_wide_as_the_utterance_is_the_whole_lattice(kind):
    head, (encoded, labels) = _head(kind, 3), _input(3)
    counts, times = torch.tensor([4, 2, 3]), torch.tensor([[0, 0, 2, 4]]).expand(3, -1)
    whole = head.log_probability(encoded, ROWS, labels, all_cells(FRAME_COUNTS[ROWS], counts))
    for band, is_all in ((8, True), (1, False)):
        cells = band_cells(FRAME_COUNTS[ROWS], counts, times, band, band)
        found = head.log_probability(encoded, ROWS, labels, cells)
        if is_all:
            torch.testing.assert_close(found, whole, atol=1e-12, rtol=0)
        else:
            assert (found < whole).all()


@pytest.mark.parametrize("kind", HEADS)
def test_tensors_have_the_names_and_shapes_of_a_bundle(kind):
    head = _head(kind)
    tensors = head.tensors()
    assert all(name.startswith(head.prefixes) for name in tensors)
    assert tensors["predictor.lstm.1.hidden_bias"].shape == (20,)
    other = _head(kind, 9)
    other.load_tensors(tensors)
    for name, tensor in other.tensors().items():
        assert torch.equal(tensor, tensors[name])


def test_a_normalizer_of_labels_that_are_unlikely_in_one_factor():
    """The product of exponentials neither overflows nor vanishes where float32 would."""
    acoustic = torch.tensor([[[0.0, 150.0], [90.0, -90.0]]])
    ilm = torch.tensor([[[0.0, -160.0], [-120.0, 0.0]]])
    found = log_normalizers(acoustic, ilm, torch.tensor([0]))
    wanted = torch.logsumexp(acoustic.double().unsqueeze(2) + ilm.double().unsqueeze(1), dim=3)
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


def test_a_confident_blank_has_a_finite_loss_and_gradient():
    head, (encoded, labels) = _head("factorized").float(), _input()
    with torch.no_grad():
        head.blank["output"].bias.fill_(60.0)
    cells = all_cells(FRAME_COUNTS[ROWS], torch.tensor([4, 2, 3]))
    head.log_probability(encoded.float(), ROWS, labels, cells).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())
    assert logsigmoid(torch.tensor(-60.0)).isfinite()


def test_a_head_with_durations_is_rejected():
    with pytest.raises(ValueError, match="tdt_durations"):
        StandardHead(TransducerConfig(LABELS, 5, 1, 7, "relu", (0, 1, 2)), D_MODEL)
