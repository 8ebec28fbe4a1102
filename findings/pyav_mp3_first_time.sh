#!/usr/bin/env bash
# Expected: the first decoded sample of an MP3 is at 0 s, as for Opus and m4a from the same encoder program.
# Seen: FFmpeg removes the encoder's delay of a LAME tag, but keeps it in the times: the first frame that it
#   gives, and the stream's start_time, are 25 ms (44.1 kHz) to 69 ms (16 kHz) although the samples are in place.
# Hurts: readers that place audio by its times (late tracks, holes) shift every MP3, and its words, by that.
# Versions: PyAV 18.1.0 with FFmpeg 8.1; ffprobe 5.1 prints the same start_time.
# Source: seen in the output; of Ogg Opus and m4a the delay is removed from both.
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
RATE_HZ, CLICK_S = 16000, 0.5
samples = np.zeros((1, 2 * RATE_HZ), np.float32)
samples[0, int(CLICK_S * RATE_HZ) :][:160] = 0.8
first_s, click_s = {}, {}
for name, codec in {"click.mp3": "libmp3lame", "click.opus": "libopus", "click.m4a": "aac"}.items():
    with av.open(name, "w") as output:
        stream = output.add_stream(codec, rate=RATE_HZ, layout="mono")
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=RATE_HZ, frame_size=None)
        frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, 0
        for converted in resampler.resample(frame):
            output.mux(stream.encode(converted))
        output.mux(stream.encode(None))
    with av.open(name) as container:
        rate_hz = container.streams.audio[0].rate
        frames = list(container.decode(audio=0))
    decoded = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    first_s[name] = frames[0].time
    click_s[name] = int(np.argmax(np.abs(decoded) > 0.4)) / rate_hz
    print(f"{name}: first frame at {first_s[name] * 1000:.1f} ms, the click of 0.500 s at sample {click_s[name]:.3f} s")
in_place = all(abs(found - CLICK_S) < 0.004 for found in click_s.values())
unchanged = in_place and first_s["click.mp3"] > 0.06 and first_s["click.opus"] == first_s["click.m4a"] == 0
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
