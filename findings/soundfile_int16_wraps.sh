#!/usr/bin/env bash
# Expected: samples of Opus or Vorbis beyond full scale are clipped when they are read as 16-bit integers, as for MP3.
# Seen: they wrap round: +1.05 becomes -31,000. Lossy codecs overshoot on every loud recording.
# Hurts: loud speech read with dtype="int16" gets full-scale clicks; the same file read as float is smooth.
# Versions: soundfile 0.14.0 with libsndfile 1.2.2.
# Source: vorbis_rshort() in libsndfile's src/ogg_vorbis.c casts without a limit; the MP3 reader clips.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile numpy==2.4.6 soundfile==0.14.0
cd "$work"
venv/bin/python - <<'EOF'
import numpy as np
import soundfile

print("soundfile", soundfile.__version__, soundfile.__libsndfile_version__)
seconds = np.arange(2 * 48000) / 48000
voice = sum(np.sin(2 * np.pi * 150 * k * seconds) for k in range(1, 20))
voice = np.clip(voice, -2, 2) / 2 * 0.999  # loud and limited, as from a broadcast
wrapped = {}
for name, options in {
    "loud.opus": {"format": "OGG", "subtype": "OPUS"},
    "loud.ogg": {"format": "OGG", "subtype": "VORBIS"},
    "loud.mp3": {"format": "MP3", "subtype": "MPEG_LAYER_III"},
}.items():
    soundfile.write(name, voice, 48000, **options)
    exact, _ = soundfile.read(name)
    integers, _ = soundfile.read(name, dtype="int16")
    is_over = np.abs(exact) > 1.001
    has_wrong_sign = is_over & (np.sign(integers) != np.sign(exact))
    wrapped[name] = int(has_wrong_sign.sum())
    print(f"{name}: peak {np.abs(exact).max():.3f}, {is_over.sum()} samples beyond 1.0, {wrapped[name]} change sign")
    for index in np.flatnonzero(has_wrong_sign)[:1]:
        print(f"  e.g. sample {index}: {exact[index]:.3f} as float, {integers[index]} as int16")
unchanged = wrapped["loud.opus"] > 0 and wrapped["loud.ogg"] > 0 and wrapped["loud.mp3"] == 0
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
