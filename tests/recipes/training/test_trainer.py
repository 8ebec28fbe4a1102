"""The training loop on a tiny model: schedule, falling losses, checkpoints that resume exactly."""

from itertools import count, pairwise

import pytest
import torch

from penstock.model.config import TransducerConfig
from recipes.training.heads import FactorizedHead
from recipes.training.trainer import Trainer, TrainerConfig, WeightAverage
from tests.helpers.tiny_model import FRAMES_PER_LABEL, LABELS, WIDTH, TinyModel, toy_batch

DURATIONS = {"rnnt": (), "tdt": (0, 1, 2)}


def trainer(seed: int = 0, **config) -> Trainer:
    torch.manual_seed(seed)
    models = {name: TinyModel(len(durations)) for name, durations in DURATIONS.items()}
    models["tdt"].encoder, models["tdt"].ctc_decoder = models["rnnt"].encoder, models["rnnt"].ctc_decoder
    return Trainer(models, DURATIONS, TrainerConfig(**({"steps": 100} | config)))


def parameters(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in made.module.named_parameters()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    made = trainer(peak_learning_rate=2.0, warm_up=0.1)
    rates = []
    for made.step in range(101):
        rates.append(made.learning_rate())
    assert rates[0] == pytest.approx(0.02)
    assert rates[5] == pytest.approx(1.0)
    assert max(rates) == rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * (0.01 + 0.99 / 2))
    assert rates[100] == pytest.approx(0.02)
    assert all(a < b for a, b in pairwise(rates[1:11]))
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_losses_fall_on_a_task_that_can_be_learned():
    made = trainer(peak_learning_rate=0.04, steps=150)
    heads = list(DURATIONS)
    made.module.eval()
    with torch.no_grad():
        before = made.losses(toy_batch(999), heads)
    for seed in range(150):
        made.train_step(toy_batch(seed))
    made.module.eval()
    with torch.no_grad():
        after = made.losses(toy_batch(999), heads)
    names = {"ctc", "rnnt", "tdt"}
    assert names <= before.keys() and names <= after.keys()
    for name in names:
        assert after[name] < 0.4 * before[name], (name, before[name], after[name])


def test_a_further_head_is_trained_on_the_same_encoder_but_for_its_language_model():
    torch.manual_seed(0)
    config = TransducerConfig(LABELS, 8, 1, 8, "tanh", (), kind="factorized")
    head = FactorizedHead(config, WIDTH, dropout=0.1)
    head.ilm.requires_grad_(False)
    kept = head.ilm.tensors()
    made = Trainer({"rnnt": TinyModel()}, {"rnnt": ()}, TrainerConfig(steps=120, peak_learning_rate=0.04), {"ft": head})
    made.module.eval()
    with torch.no_grad():
        before = made.losses(toy_batch(999), ["ft"])["ft"]
    drawn = [made.train_step(toy_batch(seed)).keys() & {"rnnt", "ft"} for seed in range(120)]
    made.module.eval()
    with torch.no_grad():
        assert made.losses(toy_batch(999), ["ft"])["ft"] < 0.5 * before
    assert all(torch.equal(tensor, kept[name]) for name, tensor in head.ilm.tensors().items())
    assert {"ft"} in drawn and {"rnnt"} in drawn


def test_utterances_that_share_rows_have_the_losses_of_each_alone():
    made, alone = trainer(), toy_batch(5)
    made.module.eval()
    rows = [
        torch.cat([alone.mel[row, :, : alone.mel_counts[row]] for row in pair], 1) for pair in (range(5), (5, 6, 7))
    ]
    counts = torch.tensor([row.shape[1] for row in rows])
    mel = torch.stack([torch.nn.functional.pad(row, (0, int(counts.max()) - row.shape[1])) for row in rows])
    frames = alone.mel_counts // (FRAMES_PER_LABEL // 2)
    ends = torch.cat([frames[:5].cumsum(0), frames[5:].cumsum(0)])
    spans = torch.stack([torch.tensor([0] * 5 + [1] * 3), ends - frames, ends], 1)
    spans[[4, 7], 2] += 3  # beyond the row
    joined = alone._replace(mel=mel, mel_counts=counts, spans=spans)
    with torch.no_grad():
        found, wanted = made.losses(joined, list(DURATIONS)), made.losses(alone, list(DURATIONS))
    for name, loss in wanted.items():
        torch.testing.assert_close(found[name], loss)


def test_batch_norms_statistics_are_averaged_too():
    """They belong to the weights with which they were measured."""
    norm = torch.nn.BatchNorm1d(2, momentum=1.0)
    average = WeightAverage(norm, decay=0.5)
    for mean in (4.0, 8.0, 6.0):
        norm(torch.tensor([[mean - 1, 2 * mean], [mean + 1, 2 * mean]]))
        average.update(norm)
    last, shares = norm.running_mean.clone(), (10 / 11, 10 / 12, 10 / 13)
    assert last.tolist() == [6.0, 12.0]
    wanted = 0.0
    for mean, share in zip((4.0, 8.0, 6.0), shares, strict=True):
        wanted += share * (mean - wanted)
    average.swap(norm)
    assert norm.running_mean.tolist() == pytest.approx([wanted, 2 * wanted])
    assert int(norm.num_batches_tracked) == 3
    average.swap(norm)
    assert torch.equal(norm.running_mean, last)


def test_a_step_with_a_bad_gradient_changes_nothing():
    made = trainer()
    made.train_step(toy_batch(1))
    before, average = parameters(made), {name: t.clone() for name, t in made.average.tensors.items()}
    bad = toy_batch(2)
    bad.mel[0, 0, 0] = float("nan")
    made.train_step(bad)
    assert_equal(before, parameters(made))
    assert_equal(average, made.average.tensors)
    made.train_step(toy_batch(3))
    assert all(torch.isfinite(tensor).all() for tensor in parameters(made).values())


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path):
    whole = trainer(seed=0)
    for seed in range(6):
        whole.train_step(toy_batch(seed))
    path = tmp_path / "state.pt"
    whole.curve.append({"step": 6, "ctc": 1.5})
    whole.elapsed_s = 12.5
    whole.save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["state.pt"], "and no partial file"
    wanted = [whole.train_step(toy_batch(seed)) for seed in range(6, 20)]

    resumed = trainer(seed=7)
    resumed.load(path)
    assert (resumed.step, resumed.elapsed_s, resumed.curve) == (6, 12.5, [{"step": 6, "ctc": 1.5}])
    assert [resumed.train_step(toy_batch(seed)) for seed in range(6, 20)] == wanted  # dropout included
    assert_equal(parameters(whole), parameters(resumed))
    assert_equal(whole.average.tensors, resumed.average.tensors)


def test_a_run_reports_measures_saves_and_lets_masks_begin():
    made = trainer(
        steps=20, mask_after=0.25, aligned_ctc_loss=1e9, report_every_s=0.0, save_every_s=1e9, measure_every_s=1e9
    )
    reported, masks, saved = [], [], []
    made.run(
        (toy_batch(seed) for seed in count()),
        reported.append,
        lambda: saved.append(made.step),
        lambda: {"WER tiny": 50.0},
        lambda aligned, mask: masks.append(mask),
    )
    assert made.step == 20 and made.progress == 1
    assert [point["step"] for point in reported] == list(range(1, 21)) and reported == made.curve
    assert masks == [False] * 5 + [True] * 15
    assert saved == [20]
    assert [point["step"] for point in reported if "WER tiny" in point] == [20]
    assert all(a["elapsed_s"] < b["elapsed_s"] for a, b in pairwise(reported))


def test_masks_wait_until_an_alignment_is_found():
    made = trainer(steps=400, mask_after=0.1, aligned_ctc_loss=2.0)
    losses = []

    def pretend(batch, heads):
        weight = next(made.module.parameters()).sum()
        losses.append(3.0 if made.step < 150 else 1.0)
        return {name: 0 * weight + losses[-1] for name in ("ctc", *heads)}

    made.losses = pretend
    began = []
    for made.step in range(300):
        made.train_step(None)
        began.append(made.masks_input)
    first = began.index(True)
    assert 150 < first < 200, "the mean follows within some 50 steps"
    assert all(began[first:])
    made._watch_alignment(float("nan"))
    made._watch_alignment(50.0)
    assert made.masks_input, "masks make the loss rise; they stay"
