#!/usr/bin/env bash
# Expected: av.open(raw, format="s16le", options={"sample_rate": "8000", "channels": "2"}) reads two channels, as
#   with PyAV 12, or rejects an option that its FFmpeg no longer has.
# Seen: FFmpeg 7 removed the demuxer's option `channels` for `ch_layout`, and PyAV drops unknown options without a
#   word: the interleaved samples are read as mono at half speed and twice the length.
# Hurts: two-channel calls from telephony (raw PCM, mu-law) after an upgrade: garbled words, no error.
# Versions: PyAV 18.1.0 with FFmpeg 8.1. {"ch_layout": "stereo"} is right; "ac" is dropped, too.
# Source: seen in the output.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile av==18.1.0 numpy==2.4.6
cd "$work"
venv/bin/python - <<'EOF'
import av
import numpy as np

print("PyAV", av.__version__, "FFmpeg", av.ffmpeg_version_info)
agent = 8000 * np.sin(2 * np.pi * 440 * np.arange(2 * 8000) / 8000)
np.stack([agent, 0 * agent], axis=1).astype("<i2").tofile("call.raw")  # 2 s, two channels, 8 kHz
found = {}
for options in (
    {"sample_rate": "8000", "channels": "2"},
    {"sample_rate": "8000", "ch_layout": "stereo"},
    {"ar": "8000", "ac": "2"},
):
    with av.open("call.raw", format="s16le", options=options) as container:
        stream = container.streams.audio[0]
        duration_s = sum(frame.samples for frame in container.decode(stream)) / stream.rate
        found[tuple(options)] = (stream.rate, stream.channels, round(duration_s, 3))
    print(options, "->", "%d Hz, %d channels, %.3f s" % found[tuple(options)])
unchanged = (
    found["sample_rate", "channels"] == (8000, 1, 4.0)
    and found["sample_rate", "ch_layout"] == (8000, 2, 2.0)
    and found["ar", "ac"] == (8000, 1, 4.0)
)
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
