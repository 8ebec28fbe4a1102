#!/usr/bin/env bash
# Expected: pydub reads a WAV of 32-bit floats, or rejects it.
# Seen: of a WAVE_FORMAT_EXTENSIBLE header it reads the width but not the sub-format: the bits of the floats are
#   taken for 32-bit integers, without an error. Noise at -60 dBFS becomes as loud as speech, and all is
#   distorted. With the plain float header (format 3) the same samples are right: pydub then runs ffmpeg.
# Hurts: WAV that ffmpeg (`-c:a pcm_f32le`) and audio editors write: pauses become loud noise.
# Versions: pydub 0.25.1, soundfile 0.14.0 as the writer.
# Source: read_wav_audio() in pydub/audio_segment.py accepts 0xFFFE like format 1.
set -euo pipefail
command -v ffmpeg >/dev/null || { echo "needs the Debian package ffmpeg" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile numpy==2.4.6 pydub==0.25.1 soundfile==0.14.0
cd "$work"
venv/bin/python -W ignore - <<'EOF'
import importlib.metadata

import numpy as np
import soundfile
from pydub import AudioSegment

print("pydub", importlib.metadata.version("pydub"))
noise = 0.001 * np.random.default_rng(1).standard_normal(16000)  # a pause at -60 dBFS
level_dbfs = {}
for name, wave_format in {"plain.wav": "WAV", "extensible.wav": "WAVEX"}.items():
    soundfile.write(name, noise, 16000, format=wave_format, subtype="FLOAT")
    segment = AudioSegment.from_file(name)
    level_dbfs[name] = segment.dBFS
    print(f"{name}: noise at -60 dBFS is read at {segment.dBFS:.1f} dBFS, {segment.sample_width} bytes per sample")
unchanged = level_dbfs["plain.wav"] < -59 and level_dbfs["extensible.wav"] > -12
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
