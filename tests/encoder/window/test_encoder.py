"""The window encoder against the plain reference, whatever shares its batch."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from penstock.encoder.precision import MAX_PROBE_ERROR, open_window_encoder, probe_windows
from penstock.encoder.window import attention
from penstock.encoder.window import encoder as window_encoder
from penstock.encoder.window.attention import Band, Chunks, RowGroup, Strip, parse_attention
from penstock.encoder.window.encoder import WindowEncoder
from penstock.errors import SettingError
from tests.helpers.offline_models import random_offline_encoder
from tests.helpers.random_models import random_checkpoint, with_encoder
from tests.helpers.reference.encoder import EncoderReference

TOLERANCE = 1e-4  # derived in tests/encoder/test_encoder.py
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 100, 511, 0, 512, 513, 2100, 17, 4, 1000, 33, 800, 5, 260, 128)
"""Mel frames of a batch: around multiples of the factors, several tiles, more than one block of queries."""


def random_mels(bins: int, seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [4.0 * torch.randn(length, bins, generator=generator) - 6.0 for length in lengths]


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


IN_GROUPS = pytest.mark.parametrize("is_grouped", [False, True], ids=["row by row", "in groups"])
"""Rows as on a CPU, and as on a GPU."""


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.nightly] * (n % 3 == 2)) for n in range(8)])
def test_every_row_of_a_batch_is_the_reference(tmp_path, seed):
    config = random_offline_encoder(seed)
    checkpoint = random_checkpoint(tmp_path, seed, config)
    reference = EncoderReference(config, checkpoint.tensors())
    mels = random_mels(config.mel_bins, seed)
    expected = [reference.encode(mel) for mel in mels]
    for is_grouped in (False, True):
        encoder = WindowEncoder(checkpoint, is_grouped=is_grouped)
        for mel, frames, wanted in zip(mels, encoder.encode(mels), expected, strict=True):
            assert_same(frames, wanted)
            assert_same(encoder.encode([mel])[0], frames)


BANDS = [Band(4, 4), Band(8, 3), Band(3, 8), Band(0, 0), Band(300, 20), Band(1000, 1000)]
CHUNKS = [Chunks(14, 5, 4), Chunks(7, 1, 0), Chunks(5, 3, 400), Chunks(0, 2, 1)]


@pytest.mark.parametrize("reach", [*BANDS, *CHUNKS], ids=str)
def test_limited_attention_is_the_masked_reference(tmp_path, reach):
    """The first chunk begins with the window; chunks do not divide a block of queries."""
    config = random_offline_encoder(1)
    checkpoint = random_checkpoint(tmp_path, 1, config)
    reference = EncoderReference(config, checkpoint.tensors())
    mels = random_mels(config.mel_bins, 0, (0, 1, 40, 300, 3000, 270, 2900))
    limit = {"chunks" if isinstance(reach, Chunks) else "band": reach}
    expected = [reference.encode(mel, **limit) for mel in mels]
    for is_grouped in (False, True):
        found = WindowEncoder(checkpoint, is_grouped=is_grouped).encode(mels, [reach] * len(mels))
        for frames, wanted in zip(found, expected, strict=True):
            assert_same(frames, wanted)


@IN_GROUPS
def test_long_windows_take_smaller_blocks(tmp_path, monkeypatch, is_grouped):
    config = random_offline_encoder(4)
    checkpoint = random_checkpoint(tmp_path, 4, config)
    encoder, mels = WindowEncoder(checkpoint, is_grouped=is_grouped), random_mels(config.mel_bins, 0, (5000, 90, 4600))
    expected = encoder.encode(mels)
    monkeypatch.setattr(attention, "GROUP_PRODUCTS" if is_grouped else "BLOCK_PRODUCTS", config.d_model << 15)
    monkeypatch.setattr(attention, "BLOCK_DISTANCES", 100)
    for found, frames in zip(encoder.encode(mels), expected, strict=True):
        assert_same(found, frames)


@IN_GROUPS
def test_each_row_has_a_band_of_its_own(tmp_path, is_grouped):
    config = with_encoder(random_offline_encoder(0), attention_band=(5, 2))
    checkpoint = random_checkpoint(tmp_path, 0, config)
    reference = EncoderReference(config, checkpoint.tensors())
    encoder = WindowEncoder(checkpoint, is_grouped=is_grouped)
    mels, bands = random_mels(config.mel_bins, 0, (90, 3000, 80, 700)), [None, Band(7, 7), Band(3, 9), None]
    for mel, band, frames in zip(mels, bands, encoder.encode(mels, bands), strict=True):
        assert_same(frames, reference.encode(mel, band=band))
    for mel, frames in zip(mels, encoder.encode(mels), strict=True):
        assert_same(frames, reference.encode(mel, band=(5, 2)))


def test_attention_is_parsed():
    assert parse_attention("full") is None
    assert parse_attention("local=128,0") == Band(128, 0)
    for text in ("", "local", "local=1", "local=1,2,3", "local=-1,2", "local=1,20000", "full=1,2", "band=1,2"):
        with pytest.raises(
            SettingError, match=r"accepted: full, or local=LEFT,RIGHT in encoder frames from 0 to 10000"
        ):
            parse_attention(text)


@IN_GROUPS
def test_it_yields_between_short_steps_and_can_be_closed(tmp_path, is_grouped):
    config = random_offline_encoder(2)
    encoder = WindowEncoder(random_checkpoint(tmp_path, 2, config), is_grouped=is_grouped)
    mels = random_mels(config.mel_bins, 0, (12_000, 30))
    steps = encoder.run(mels)
    count, shares = 0, [0.0]
    while True:
        try:
            shares.append(next(steps))
        except StopIteration as finished:
            frames = finished.value
            break
        count += 1
        encoder.encode([mels[1]])  # another batch in between changes nothing
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert count > 12_000 / config.subsampling_factor / 512 * config.n_layers
    for found, expected in zip(frames, encoder.encode(mels), strict=True):
        assert torch.equal(found, expected)
    steps = encoder.run(mels)
    next(steps)
    steps.close()


@pytest.mark.parametrize("band", [None, Band(20, 20)], ids=str)
def test_no_step_has_more_work_because_a_window_is_longer(tmp_path, monkeypatch, band):
    config = random_offline_encoder(2)
    encoder = WindowEncoder(random_checkpoint(tmp_path, 2, config))
    monkeypatch.setattr(window_encoder, "BLOCK_NUMBERS", 64 * config.d_model)
    monkeypatch.setattr(attention, "BLOCK_PRODUCTS", config.d_model << 14)
    monkeypatch.setattr(attention, "BLOCK_DISTANCES", 128)

    def most_work(length: int) -> int:
        steps, most = encoder.run(random_mels(config.mel_bins, 0, (length,)), [band]), 0
        for _ in range(1 << 20):
            with FlopCounterMode(display=False) as counter:
                is_done = next(steps, "done") == "done"
            most = max(most, counter.get_total_flops())
            if is_done:
                return most
        raise AssertionError("the encoder never ends")

    assert 0 < most_work(12_000) <= 1.05 * most_work(6_000)


def test_groups_have_rows_of_similar_lengths_and_limited_scores():
    strip = Strip([100, 0, 49, 50, 10, 99, 24, 20, 85], 4, torch.device("cpu"))
    groups = list(strip.groups(range(8), lambda frames: 20_000 // frames**2))  # all but the last row
    assert [getattr(each, "lengths", each) for each in groups] == [
        [100, 99], [50, 49], [24, 20], slice(199, 209),
    ]  # fmt: skip
    begin, first = 100 + 49 + 50 + 10, groups[0]
    assert isinstance(first, RowGroup) and first.is_padding is not None
    assert first.frames.tolist() == [*range(100), *range(begin, begin + 99)]
    assert torch.equal(first.padded[first.own], first.frames)
    assert first.is_padding.nonzero().tolist() == [[1, 99]]


def test_windows_in_pieces_are_the_whole_ones_and_are_emptied(tmp_path):
    config = random_offline_encoder(5)
    encoder, mels = WindowEncoder(random_checkpoint(tmp_path, 5, config)), random_mels(config.mel_bins, 5)
    expected = encoder.encode(mels)
    sizes = (700, 1, 30, 0, 129)
    pieces: list = [list(mel.split([*cut_sizes(sizes, len(mel))])) for mel in mels]
    pieces[3] = mels[3]  # a tensor among them
    steps, left = encoder.run(pieces), []
    for _ in range(1 << 20):
        try:
            next(steps)
        except StopIteration as finished:
            found = finished.value
            break
        left.append(sum(map(len, pieces[15])))
    for frames, alone in zip(found, expected, strict=True):
        assert torch.equal(frames, alone)
    assert len(mels[3]) and not any(each for number, each in enumerate(pieces) if number != 3)
    assert {0, len(mels[15])} < set(left)  # 2,100 frames, some of them between two tiles
    assert left == sorted(left, reverse=True)


def cut_sizes(sizes: tuple[int, ...], length: int) -> Iterator[int]:
    """`sizes` again and again, until their sum is `length`."""
    for size in itertools.cycle(sizes):
        yield min(size, length)
        length -= min(size, length)
        if not length:
            return


def test_no_windows_give_no_frames(tmp_path):
    encoder = WindowEncoder(random_checkpoint(tmp_path, 0, random_offline_encoder(0)))
    assert encoder.encode([]) == []


def test_sixteen_bits_are_probed(tmp_path):
    checkpoint = random_checkpoint(tmp_path, 3, random_offline_encoder(3))
    assert 0 < probe_windows(checkpoint, "cpu", torch.float16) < MAX_PROBE_ERROR
    assert open_window_encoder(checkpoint, precision="bfloat16").dtype == torch.bfloat16
    assert open_window_encoder(checkpoint, precision="float16").dtype == torch.float16
