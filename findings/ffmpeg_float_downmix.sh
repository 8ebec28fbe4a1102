#!/usr/bin/env bash
# Expected: stereo to mono has one gain, whatever the sample format of the output.
# Seen: libswresample scales its downmix to a sum of 1 only for integer formats. With a float format, L and R
#   are each multiplied by 0.707 and added: equal channels become 3 dB louder, full scale becomes 1.41.
# Hurts: features from float audio are 3 dB off those from 16-bit audio of the same file, and writing the
#   float samples to a WAV clips them.
# Versions: PyAV 18.1.0 with FFmpeg 8.1; Debian's ffmpeg 5.1 (`-ac 1 -f f32le`) does the same.
# Source: auto_matrix() in libswresample/rematrix.c; the option rematrix_maxval=1 gives one gain.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile av==18.1.0 numpy==2.4.6 soundfile==0.14.0
cd "$work"
venv/bin/python - <<'EOF'
import av
import numpy as np
import soundfile

tone = 0.9 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
soundfile.write("stereo.wav", np.stack([tone, tone], axis=1), 16000)
print("PyAV", av.__version__, "FFmpeg", av.ffmpeg_version_info)


def mono_peak(sample_format: str, full_scale: float) -> float:
    resampler = av.AudioResampler(format=sample_format, layout="mono", rate=16000)
    with av.open("stereo.wav") as container:
        mono = [out.to_ndarray() for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    return float(np.abs(np.concatenate(mono, axis=1).astype(np.float64)).max() / full_scale)


peaks = {"s16": mono_peak("s16", 32768), "flt": mono_peak("flt", 1), "fltp": mono_peak("fltp", 1)}
print("peak of each channel 0.900; peak of the mono mix:", {name: round(peak, 3) for name, peak in peaks.items()})
unchanged = abs(peaks["s16"] - 0.9) < 0.01 and peaks["flt"] > 1.26 and peaks["fltp"] > 1.26
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
