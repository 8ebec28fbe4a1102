#!/usr/bin/env bash
# Expected: get_speech_timestamps(audio, sampling_rate=48000) resamples to 16 kHz.
# Seen: it takes every third sample without a low-pass filter. Sound above 8 kHz, which no 16 kHz recognizer receives,
#   folds into the band of speech: speech moved to 12.5 to 19.5 kHz is found as speech, nearly at the same times.
# Hurts: 32, 48, 96 kHz microphones near fans, monitors, ultrasonic sensors: segments of "speech" without text.
# Versions: silero-vad 6.2.3, soxr 1.1.0 as the right way. It does warn of "casting to 16000 manually".
# Source: audio[::step] in silero_vad/utils_vad.py.
set -euo pipefail
command -v espeak-ng >/dev/null || { echo "needs the Debian package espeak-ng" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile torch==2.13.0 silero-vad==6.2.3 numpy==2.4.6 soundfile==0.14.0 soxr==1.1.0
cd "$work"
espeak-ng -w voice.wav "Speech recognition starts with finding speech. This is a test of a voice activity detector."
venv/bin/python -W ignore - <<'EOF'
import importlib.metadata

import numpy as np
import silero_vad
import soundfile
import soxr
import torch

print("silero-vad", importlib.metadata.version("silero-vad"), "torch", torch.__version__)
voice, rate_hz = soundfile.read("voice.wav", dtype="float32")
voice = np.pad(soxr.resample(voice, rate_hz, 48000), 48000)
frequency_hz = np.fft.rfftfreq(len(voice), 1 / 48000)


def filtered(samples: np.ndarray, is_passed: np.ndarray) -> np.ndarray:
    return np.fft.irfft(np.fft.rfft(samples) * is_passed, len(samples))


carrier = np.cos(2 * np.pi * 16000 * np.arange(len(voice)) / 48000)
high = filtered(2 * filtered(voice, frequency_hz < 3500) * carrier, frequency_hz > 10000)
model = silero_vad.load_silero_vad()


def speech(samples: np.ndarray, rate_hz: int) -> list[tuple[float, float]]:
    tensor = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    found = silero_vad.get_speech_timestamps(tensor, model, sampling_rate=rate_hz)
    return [(round(span["start"] / rate_hz, 2), round(span["end"] / rate_hz, 2)) for span in found]


original, folded = speech(voice, 48000), speech(high, 48000)
resampled = speech(soxr.resample(high, 48000, 16000), 16000)
print("voice, 48 kHz:", original)
print("the voice above 10 kHz only, 48 kHz:", folded)
print("the same, resampled by soxr to 16 kHz:", resampled)
unchanged = len(original) > 0 and len(folded) > 0 and resampled == []
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
