#!/usr/bin/env bash
# Expected: digital silence resampled as int16 is digital silence, as it is as float.
# Seen: libsoxr adds dither to 16-bit output: zeros become a noise of -1, 0 and 1, which python-soxr cannot switch off.
# Hurts: tests for muted calls, DTX or padding (`not samples.any()`), exact comparisons with a float chain, and lossless
#   compression of pauses.
# Versions: soxr 1.1.0 with libsoxr 0.1.3. Resample as float32 and round.
# Source: soxr.h: dither if the output is 16-bit, unless SOXR_NO_DITHER is set.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile numpy==2.4.6 soxr==1.1.0
"$work/venv/bin/python" - <<'EOF'
import numpy as np
import soxr

print("soxr", soxr.__version__, "libsoxr", soxr.__libsoxr_version__)
silence = np.zeros(48000, np.int16)
share = {}
for name, samples in {"int16": silence, "float32": silence.astype(np.float32)}.items():
    resampled = soxr.resample(samples, 48000, 16000)
    share[name] = float(np.mean(resampled != 0))
    values = np.unique(resampled).tolist()
    print(f"{name}: 1 s of zeros from 48 to 16 kHz becomes {values}, {share[name]:.0%} not zero")
unchanged = share["int16"] > 0.1 and share["float32"] == 0
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
