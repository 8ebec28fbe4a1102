#!/usr/bin/env bash
# Expected: quantize_dynamic(per_channel=True) gives each output channel of a convolution its own scale, as it does for
#   the columns of a MatMul.
# Seen: Conv keeps one scale for the whole kernel, without a warning: the model is the same with and without the option.
#   Channels with small weights lose most of their bits beside a large one.
# Hurts: FastConformer and Zipformer (pointwise and depthwise convolutions) exported to ONNX; per_channel seems to bring
#   nothing. Leave Conv out (op_types_to_quantize).
# Versions: onnxruntime 1.32.0, onnx 1.23.2.
# Source: ConvInteger.quantize() in onnxruntime/quantization/operators/conv.py; MatMulInteger
#   passes op_level_per_channel.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
cd "$work"
venv/bin/python - <<'EOF'
import logging

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

logging.disable(logging.CRITICAL)
print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
CHANNELS = 8
weight = 0.01 * np.random.default_rng(1).standard_normal((CHANNELS, CHANNELS)).astype(np.float32)
weight[0] *= 100  # one output channel is louder than the others
audio = np.random.default_rng(2).standard_normal((1, CHANNELS, 50)).astype(np.float32)


def outputs(kind: str) -> tuple[int, float]:
    """The number of weight scales, and the error of the quiet channels relative to their largest output."""
    kernel = weight[:, :, None] if kind == "Conv" else np.ascontiguousarray(weight.T)
    shape = ["n", CHANNELS, "t"] if kind == "Conv" else ["n", "t", CHANNELS]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    node = helper.make_node(kind, ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(kernel, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "float.onnx")
    quantize_dynamic("float.onnx", "int8.onnx", per_channel=True)
    (scale,) = (t for t in onnx.load("int8.onnx").graph.initializer if t.name == "w_scale")
    inputs = {"x": audio if kind == "Conv" else audio.transpose(0, 2, 1)}
    exact, rounded = (onnxruntime.InferenceSession(m).run(None, inputs)[0] for m in ("float.onnx", "int8.onnx"))
    quiet = np.s_[:, 1:] if kind == "Conv" else np.s_[..., 1:]
    return numpy_helper.to_array(scale).size, float(np.abs(exact - rounded)[quiet].max() / np.abs(exact[quiet]).max())


scales = {}
for kind in ("MatMul", "Conv"):
    scales[kind], error = outputs(kind)
    print(f"{kind}: {scales[kind]} weight scale(s) for {CHANNELS} channels, quiet channels off by {error:.0%}")
unchanged = scales == {"MatMul": CHANNELS, "Conv": 1}
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
