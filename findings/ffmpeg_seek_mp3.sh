#!/usr/bin/env bash
# Expected: `ffmpeg -ss T -i talk.mp3` decodes a little before T and gives the samples of the whole decode.
# Seen: it starts decoding at T, where the data of the first MP3 frames (bit reservoir) are missing: the cut
#   begins with some 50 ms of digital silence. libsndfile's seek gives the exact samples.
# Hurts: segments cut from long MP3 recordings for training or evaluation lose their first phoneme.
# Versions: Debian's ffmpeg 5.1; soundfile 0.14.0 as the reference. `-ss` behind `-i` is exact.
# Source: seen in the output; MP3 frames refer to up to 511 bytes of the frames before them.
set -euo pipefail
command -v ffmpeg >/dev/null || { echo "needs the Debian package ffmpeg" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile numpy==2.4.6 soundfile==0.14.0
cd "$work"
venv/bin/python - <<'EOF'
import subprocess

import numpy as np
import soundfile

print(subprocess.run(["ffmpeg", "-version"], capture_output=True, text=True).stdout.splitlines()[0])
rate_hz, start_s = 44100, 3
noise = 0.1 * np.random.default_rng(1).standard_normal(rate_hz * 6)
soundfile.write("talk.wav", noise, rate_hz)
subprocess.run("ffmpeg -v error -i talk.wav -c:a libmp3lame -b:a 64k talk.mp3".split(), check=True)


def decode(*arguments: str) -> np.ndarray:
    command = ["ffmpeg", "-v", "error", *arguments, "-f", "f32le", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.float32)


whole = decode("-i", "talk.mp3")
right = whole[start_s * rate_hz :]
with soundfile.SoundFile("talk.mp3") as file:
    file.seek(start_s * rate_hz)
    by_libsndfile = file.read(rate_hz, dtype="float32")
before, behind = decode("-ss", str(start_s), "-i", "talk.mp3"), decode("-i", "talk.mp3", "-ss", str(start_s))
silent_ms = 1000 * int(np.argmax(np.abs(before) > 1e-3)) / rate_hz
print(f"level of the whole decode at {start_s} s: {right[:1000].std():.3f}")
print(f"-ss before -i: {silent_ms:.0f} ms of silence, then sound")
is_exact = {}
for name, cut in {"-ss behind -i": behind[:rate_hz], "libsndfile seek": by_libsndfile}.items():
    difference = float(np.abs(cut - right[:rate_hz]).max())
    is_exact[name] = difference < 0.001
    print(f"{name}: differs by {difference:.4f}")
unchanged = silent_ms > 20 and is_exact["-ss behind -i"] and is_exact["libsndfile seek"]
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
