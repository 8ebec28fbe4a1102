import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_common.audio.live_resampler import LiveResampler

RATE_HZ = 16_000
RATES_HZ = [1000, 6000, 7999, 8000, 11_025, 12_000, 15_999, 22_050, 24_000, 32_000, 44_100, 44_101, 48_000, 192_000]
NOISE = np.random.default_rng(0).normal(0, 0.1, 50_000).astype(np.float32)


def resampled(rate_hz, samples):
    return LiveResampler(rate_hz, RATE_HZ).resample_chunk(np.asarray(samples, np.float32), last=True)


def tone(frequency_hz, rate_hz, count):
    return np.sin(2 * np.pi * frequency_hz * np.arange(count) / rate_hz)


def level_db(samples):
    """A level relative to a full tone, which has 0."""
    return 10 * np.log10(2 * np.mean(np.square(samples)) + 1e-30)


@settings(max_examples=60)
@given(
    rate_hz=st.sampled_from(RATES_HZ) | st.integers(1000, 768_000),
    count=st.integers(0, 40_000),
    sizes=st.lists(st.integers(0, 20_000) | st.integers(1, 700), min_size=1, max_size=5).filter(any),
)
def test_parts_change_no_bit_and_the_count_is_that_of_a_whole_file(rate_hz, count, sizes):
    samples, stream, parts, position = NOISE[:count], LiveResampler(rate_hz, RATE_HZ), [], 0
    while position < count and len(parts) < 300:
        size = sizes[len(parts) % len(sizes)]
        parts.append(stream.resample_chunk(samples[position : position + size]))
        position += size
    parts.append(stream.resample_chunk(samples[position:], last=True))
    np.testing.assert_array_equal(np.concatenate(parts), resampled(rate_hz, samples))
    assert sum(map(len, parts)) == (len(soxr.resample(samples, rate_hz, RATE_HZ)) if count else 0)


@settings(max_examples=40)
@given(rate_hz=st.sampled_from(RATES_HZ) | st.integers(1000, 768_000), end=st.integers(0, 20_000))
def test_an_end_in_between_has_all_before_it_and_changes_only_what_is_near(rate_hz, end):
    stream, none = LiveResampler(rate_hz, RATE_HZ), NOISE[:0]
    begin = np.concatenate([stream.resample_chunk(NOISE[:end]), stream.resample_chunk(none, last=True)])
    np.testing.assert_array_equal(begin, resampled(rate_hz, NOISE[:end]))
    rest = stream.resample_chunk(NOISE[end:40_000], last=True)
    found, whole = np.concatenate([begin, rest]), resampled(rate_hz, NOISE[:40_000])
    near = slice(max(0, len(begin) - 81 - 2 * RATE_HZ // rate_hz), len(begin))
    found[near] = whole[near]
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("rate_hz", RATES_HZ[1:])
def test_tones_keep_level_and_time(rate_hz):
    """Flat within 0.1 dB, images and aliases below -90 dB, and sample n is that at n / 16,000 s."""
    edge_hz = 0.9625 * min(rate_hz, RATE_HZ) / 2 - 250
    assert edge_hz >= 3600 or rate_hz < 8000
    for frequency_hz in (edge_hz, edge_hz / 2, edge_hz / 9, 30):
        found = resampled(rate_hz, tone(frequency_hz, rate_hz, rate_hz // 2))
        expected = tone(frequency_hz, RATE_HZ, len(found))
        inner = slice(400, -400)
        gain = np.dot(found[inner], expected[inner]) / np.dot(expected[inner], expected[inner])
        assert abs(20 * np.log10(gain)) < 0.1
        assert level_db(found[inner] - gain * expected[inner]) < -90


@pytest.mark.parametrize("rate_hz", [22_050, 24_000, 32_000, 44_100, 44_101, 48_000, 192_000])
def test_what_16_khz_cannot_carry_is_removed(rate_hz):
    for frequency_hz in np.linspace(8000, min(rate_hz / 2, 30_000), 9)[:-1] + 1:
        assert level_db(resampled(rate_hz, tone(frequency_hz, rate_hz, rate_hz // 2))[400:-400]) < -90


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_an_output_waits_for_at_most_5_ms(rate_hz):
    stream, inputs, outputs = LiveResampler(rate_hz, RATE_HZ), 0, 0
    for size in [1] * 300 + [rate_hz // 100] * 20:
        outputs += len(stream.resample_chunk(NOISE[:size]))
        inputs += size
        assert outputs / RATE_HZ >= inputs / rate_hz - 0.005
