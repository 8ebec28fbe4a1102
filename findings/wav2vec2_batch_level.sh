#!/usr/bin/env bash
# Expected: Wav2Vec2FeatureExtractor() normalizes each recording to mean 0 and variance 1, then pads with zeros, as its
#   docstring asks for ("simply be padded with 0").
# Seen: by default it pads first. A short recording is normalized together with its padding, so 1 s beside 4 s is twice
#   as loud as alone, and an offset of the microphone makes the padding non-zero.
# Hurts: batched inference and training with CTC models: features and text depend on the rest of the batch.
# Versions: transformers 5.23.0. return_attention_mask=True gives the expected values.
# Source: Wav2Vec2FeatureExtractor.__call__(): without a mask, zero_mean_unit_var_norm() runs over the padded length.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile transformers==5.23.0 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'EOF'
import numpy as np
import transformers

transformers.logging.set_verbosity_error()
print("transformers", transformers.__version__)
rng = np.random.default_rng(1)
short, long = (0.1 * rng.standard_normal(n).astype(np.float32) + 0.02 for n in (16000, 64000))
level = {}
for mask in (False, True):
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=mask)
    for name, batch in {"alone": [short], "beside 4 s": [short, long]}.items():
        values = np.array(extractor(batch, sampling_rate=16000, padding=True)["input_values"][0])
        level[mask, name] = float(values[:16000].std())
        padding = f", padding {values[-1]:.3f}" if len(values) > 16000 else ""
        print(f"return_attention_mask={mask}: 1 s {name}: level {level[mask, name]:.2f}{padding}")
unchanged = level[False, "beside 4 s"] > 1.9 * level[False, "alone"] and abs(level[True, "beside 4 s"] - 1) < 0.01
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
