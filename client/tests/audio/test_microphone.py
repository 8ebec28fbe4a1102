import sys

import numpy as np
import pytest

from client.tests.helpers.fake_sounddevice import FakeSounddevice
from client.tests.helpers.fakes import text_of
from penstock_client import MicrophoneError
from penstock_client.audio.microphone import Microphone

GRPC_ONLY = pytest.mark.parametrize("protocol", ["grpc"], indirect=True)


@pytest.fixture
def plug_in(monkeypatch):
    """Replaces the package that is imported."""

    def plug_in(package):
        monkeypatch.setitem(sys.modules, "sounddevice", package)
        return package

    return plug_in


def test_blocks_are_the_recorded_samples(plug_in, samples):
    package = plug_in(FakeSounddevice(samples))
    with Microphone(block_ms=30) as microphone:
        blocks = list(microphone)
    assert [block.size for block in blocks[:-1]] == [480] * 79
    assert np.array_equal(np.concatenate(blocks), samples)
    assert package.open_streams == 0


def test_a_device_with_another_rate_is_resampled(plug_in):
    seconds = np.arange(48_000) / 48_000
    plug_in(FakeSounddevice(np.sin(2 * np.pi * 440 * seconds).astype(np.float32), rate_hz=48_000))
    with Microphone() as microphone:
        recorded = np.concatenate(list(microphone))
    assert recorded.size == 16_000
    spoken = np.sin(2 * np.pi * 440 * np.arange(recorded.size) / 16_000)
    assert np.abs(recorded - spoken)[200:-200].max() < 0.01


def test_stop_ends_the_iteration_after_the_recorded_blocks(plug_in, samples):
    plug_in(FakeSounddevice(samples[:0]))
    with Microphone() as microphone:
        microphone.stop()
        assert list(microphone) == []


def test_a_missing_package_is_named(plug_in):
    plug_in(None)
    with pytest.raises(MicrophoneError, match=r"needs the package sounddevice: pip install sounddevice"):
        Microphone()


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    with pytest.raises(MicrophoneError, match="needs the library PortAudio: PortAudio library not found"):
        Microphone()


@pytest.mark.parametrize(
    "names, device, message",
    [
        ((), None, "the microphone cannot be used: Error querying device -1"),
        (("desk",), "headset", "microphone 'headset' cannot be used: No input device matching 'headset'"),
    ],
)
def test_a_missing_device_is_named(plug_in, samples, names, device, message):
    package = plug_in(FakeSounddevice(samples, names=names))
    with pytest.raises(MicrophoneError, match=message), Microphone(device):
        pass
    assert package.open_streams == 0


def test_the_command_transcribes_the_microphone(run, plug_in, samples, recognizer):
    plug_in(FakeSounddevice(samples))
    status, out, err = run("--microphone", "--request-ms", "50")
    assert (status, out) == (0, text_of(samples.size) + "\n")
    assert err.startswith("microphone: 2.40 s of audio")
    assert np.array_equal(np.concatenate([request.samples for request in recognizer.requests]), samples)


@GRPC_ONLY
def test_ctrl_c_ends_the_audio_and_prints_the_final_text(run, plug_in, samples, monkeypatch):
    plug_in(FakeSounddevice(samples))
    spoken = Microphone.__iter__

    def interrupted(self):
        for number, block in enumerate(spoken(self)):
            if number == 7:
                raise KeyboardInterrupt
            yield block

    monkeypatch.setattr(Microphone, "__iter__", interrupted)
    status, out, _ = run("--microphone", "desk")
    assert (status, out) == (0, text_of(7 * 1600) + "\n")


@GRPC_ONLY
def test_a_missing_microphone_is_one_line(run, plug_in, recognizer):
    plug_in(None)
    status, out, err = run("--microphone")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(
        "penstock-client: error: MICROPHONE_FAILED: microphone: the microphone needs the package sounddevice"
    )
    assert recognizer.requests == []
