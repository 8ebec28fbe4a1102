"""The recipe of a speaker model: what is true of a mixture, that some steps teach, and what is an error."""

import dataclasses

import numpy as np
import pytest
import torch

from penstock.speakers.bundle import CachePolicy, SpeakerCheckpoint
from recipes.speakers import train as recipe
from recipes.speakers.mixtures import Mixer, MixtureConfig, Utterance, arrival, speech
from recipes.training.batches import Recording

BINS = 80


def tone(bin_: int, frames: int = 100) -> Utterance:
    """A voice that is one loud mel bin, from frame 20 to 20 before the end."""
    mel = np.full((frames, BINS), -14.0, np.float32)
    mel[20:-20, bin_] = 0.0
    return Utterance(mel, speech(mel))


VOICES = {"low": [tone(20)], "high": [tone(60)]}
PLAIN = MixtureConfig(
    counts=(0.0, 1.0, 0.0, 0.0), overlap=0.0, tempo=(1.0, 1.0), warp=(1.0, 1.0), color_db=0.0, level_db=(0.0, 0.0),
    noise=0.0, cached=0.0,
)  # fmt: skip


def test_speech_is_what_is_loud_without_short_holes_and_clicks():
    mel = np.full((300, BINS), -12.0, np.float32)
    for begin, end in ((50, 100), (120, 150), (200, 260), (295, 298)):
        mel[begin:end] = -2.0
    assert np.flatnonzero(np.diff(speech(mel))).tolist() == [46, 152, 196, 262]


def test_the_first_to_speak_is_the_first_speaker_and_has_its_own_frames():
    mixer = Mixer(VOICES, PLAIN, np.random.default_rng(0))
    starts = set()
    for _ in range(20):
        mel, speaks, voices = mixer.mixture(1600)
        first, second = (int(speaks[:, number].argmax()) for number in (0, 1))
        assert 0 < first < second
        assert not speaks[:, 2:].any()
        loud = mel[first + 30].argmax()
        starts.add(int(loud))
        assert loud == (60, 20)[voices[0] % 2]  # voices are numbered by name
        is_first = mel[:, loud] > -5
        assert (speaks[:, 0] >= is_first).all()  # and some frames before and after
        assert (is_first[5:-5] == 0)[speaks[5:-5, 1] > 0].all()
    assert starts == {20, 60}


def test_a_cache_holds_frames_of_each_speaker_and_then_silence():
    config = dataclasses.replace(PLAIN, cached=1.0, cache_frames=40)
    batch = Mixer(VOICES, config, np.random.default_rng(0)).batch(8, 100)
    speaks, is_silence = batch.speaks.numpy(), batch.is_silence.numpy()
    assert not is_silence[:, 40:].any()
    assert is_silence[:, 39].all()
    for row in range(8):
        who = speaks[row, : 40 * 8].reshape(40, 8, -1).mean(axis=1)
        numbers = who.argmax(axis=1)[~is_silence[row, :40]]
        assert (np.diff(numbers) >= 0).all()
        assert (who.max(axis=1) > 0.5)[~is_silence[row, :40]].all()
        assert not who[is_silence[row, :40]].any()


def test_columns_are_in_the_order_of_arrival():
    speaks = np.zeros((5, 3))
    speaks[3:, 0], speaks[1:3, 2] = 1, 1
    assert arrival(speaks).tolist() == [2, 0, 1]


@pytest.mark.nightly
def test_some_steps_teach_and_the_bundle_is_read(tmp_path, monkeypatch):
    config = dataclasses.replace(
        recipe.CONFIG, d_model=32, n_layers=1, d_feed_forward=32, d_head=8, speakers=2,
        cache=CachePolicy(16, 1, 0.25, 0.05, 0.75, 1.5, 0.5),
    )  # fmt: skip
    monkeypatch.setattr(recipe, "CONFIG", config)
    mixer = Mixer(VOICES, dataclasses.replace(PLAIN, speakers=2, counts=(1.0,)), np.random.default_rng(0))
    held_out = mixer.batch(16, 48)
    voices = torch.zeros(mixer.voices, 32)
    before, _ = recipe.loss_of(config, recipe.new_tensors(config), held_out, voices)
    found = recipe.train(config, recipe.new_tensors(config), mixer, 150, 1e-2, 1200)
    assert recipe.loss_of(config, found, held_out, voices)[0] < 0.6 * before
    recipe.save(tmp_path, found, {})
    read = SpeakerCheckpoint(tmp_path).tensors()
    torch.testing.assert_close(read["layers.0.attention.query.weight"], found["layers.0.attention.query.weight"],
                               rtol=1e-3, atol=1e-5)  # fmt: skip


def test_every_tenth_speaker_is_left_out():
    recordings = [Recording(np.zeros(0, np.float32), (), f"s{number:02}") for number in range(30) for _ in range(2)]
    kept, left_out = recipe.divided(recordings)
    assert sorted({each.speaker for each in left_out}) == ["s05", "s15", "s25"]
    assert len(kept) == 54
