"""The encoder step as an OpenVINO model, for CPUs: the network of `torch_step.py` as one graph.

Differences from the PyTorch reference are of form only. A stream's keys and values are read whole and in the order of
their pages, so one copy of a slot replaces one per page; scores by distance are put into that order instead. Chunks
come back as outputs. Norms with a linear layer after them are folded into it.
"""

from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as op

from penstock.encoder.attention import AttentionWeights, relative_positions
from penstock.encoder.modules import NORM_EPSILON, Tensors, projection, subset
from penstock.encoder.state import EncoderState

Node = Any
"""A node of the graph or one of its outputs; OpenVINO has no types."""
_LAST_AXIS = -1


class PageTables(NamedTuple):
    """Inputs that depend on the current chunk's page alone. K = P * T + T keys: all pages, then the current chunk.

    Rows 0 .. P - 1 are for a stream's first P chunks, rows P .. 2P - 1 for later chunks, by their page.
    """

    columns: torch.Tensor
    """[2P, T, K] int32: the column of the scores by distance that belongs to a key."""
    bias: torch.Tensor
    """[2P, K] float32: 0 for visible keys, very negative for the others: pages to come, and the one to overwrite."""


def page_tables(pages: int, frames: int) -> PageTables:
    """Builds the tables for P pages of T frames."""
    row, page, frame = torch.arange(2 * pages), torch.arange(pages), torch.arange(frames)
    age = torch.remainder(row.unsqueeze(1) - page, pages)  # [2P, P], chunks ago; 0 is the page to overwrite
    is_visible = (age > 0) & ((row.unsqueeze(1) >= pages) | (age <= row.unsqueeze(1)))
    # Keys in the order of age: those of the current chunk are the last.
    place = ((pages - 1 - age) * frames).unsqueeze(2) + frame  # [2P, P, T]
    current = ((pages - 1) * frames + frame).expand(2 * pages, 1, frames)
    place = torch.cat([place, current], dim=1).flatten(1)  # [2P, K]
    columns = place.unsqueeze(1) + (frames - 1 - frame).unsqueeze(1)  # as `attention.index_pages`
    is_visible = torch.cat([is_visible, torch.ones(2 * pages, 1, dtype=torch.bool)], dim=1)
    masked = torch.finfo(torch.float32).min / 4
    bias = torch.zeros(is_visible.shape).masked_fill_(~is_visible, masked).repeat_interleave(frames, dim=1)
    return PageTables(columns.to(torch.int32).contiguous(), bias)


class StepGraph:
    """Builds the model. Inputs by name, then outputs in order; B is `batch`, -1 for any.

    mel [B, N, F]; valid_mel_frames, slots and row (of `PageTables`), [B] int32. The state is read by slot: column.I,
    tail.LAYER [S, k - 1, D], kv.LAYER [2 * S, H, P * T, dh], keys and values of a slot in turn.

    Outputs: encoded [B, T, D]; the chunk's keys and values [layers * B, 2 * H, T, dh]; the next tails [layers * B,
    k - 1, D]; the next column of each subsampling layer.
    """

    def __init__(self, tensors: Tensors, state: EncoderState, batch: int):
        """tensors: of the checkpoint, those of the encoder."""
        self._config, self._tensors, self._state = state.config, tensors, state
        self._batch = batch
        self._frames = state.context.chunk_encoder_frames
        self._inputs: list[Node] = []

    def build(self) -> Node:
        """Returns the model, an `openvino.Model`."""
        config, state, frames = self._config, self._state, self._frames
        # 1) inputs and what all layers share
        mel = self._input("mel", [self._batch, config.subsampling_factor * frames, config.mel_bins])
        valid, self._slots, row = (
            self._input(name, [self._batch], ov.Type.i32) for name in ("valid_mel_frames", "slots", "row")
        )
        *masks_by_layer, is_frame = self._mask_audio(row, valid)
        self._index_keys(row, is_frame)
        # 2) subsampling, [B, N, F] -> [B, T, D]
        x, columns = self._subsample(mel, masks_by_layer)
        # 3) layers
        positions = relative_positions(state.context, config.d_model, torch.device("cpu"), torch.float32)
        new_keys_values, tails = [], []
        for i in range(config.n_layers):
            tensors = self._part(f"layers.{i}")
            x = self._feed_forward(x, subset(tensors, "feed_forward1"))
            x, keys_values = self._attend(i, x, positions, subset(tensors, "attention"))
            x, tail = self._convolve(i, x, subset(tensors, "convolution"))
            x = self._feed_forward(x, subset(tensors, "feed_forward2"))
            x = _norm(x, subset(tensors, "norm_out"))
            new_keys_values.append(keys_values)
            tails.append(tail)
        outputs = (x, op.concat(new_keys_values, 0), op.concat(tails, 0), *columns)
        return ov.Model([op.result(output) for output in outputs], self._inputs, "encoder_step")

    def _input(self, name: str, shape: list[int], kind: Node = ov.Type.f32) -> Node:
        node = op.parameter(ov.PartialShape(shape), kind)
        node.output(0).get_tensor().set_names({name})
        self._inputs.append(node)
        return node

    def _mask_audio(self, row: Node, valid: Node) -> list[Node]:
        """Returns masks of audio, [B, N / 2^I] for the input of each subsampling layer and [B, T] for the output."""
        config = self._config
        layers, chunk = config.subsampling_layers, config.subsampling_factor * self._frames
        is_first = op.unsqueeze(op.convert(op.equal(row, op.constant(np.int32(0))), "f32"), _numbers(1))  # [B, 1]
        valid = op.unsqueeze(op.convert(valid, "f32"), _numbers(1))
        masks = []
        for layer in range(layers + 1):
            place = _constant(torch.arange(chunk >> layer).unsqueeze(0))
            begin = op.multiply(is_first, _constant((1 << (layers - layer)) - 1))
            end = op.ceiling(op.multiply(valid, _constant(0.5**layer)))  # exact: a power of two
            is_audio = op.logical_and(op.greater_equal(place, begin), op.less(place, end))
            masks.append(op.convert(is_audio, "f32"))
        return masks

    def _index_keys(self, row: Node, is_frame: Node) -> None:
        """Sets the biases [B, 1, 1, K] and columns [B, H, T, K] of all layers, and the rows of the state."""
        state, frames, heads = self._state, self._frames, self._config.n_heads
        tables = page_tables(state.pages_per_slot, frames)
        past = state.pages_per_slot * frames
        shown = op.multiply(op.subtract(is_frame, _constant(1.0)), _constant(-torch.finfo(torch.float32).min / 4))
        shown = op.concat([op.gather(_constant(tables.bias[:, :past]), row, _numbers(0)), shown], 1)
        self._bias = op.unsqueeze(shown, _numbers([1, 2]))
        columns = tables.columns.unsqueeze(1).expand(-1, heads, -1, -1).contiguous()
        self._columns = op.gather(op.constant(columns.numpy()), row, _numbers(0))
        self._key_rows = op.multiply(self._slots, op.constant(np.int32(2)))
        self._value_rows = op.add(self._key_rows, op.constant(np.int32(1)))

    def _part(self, name: str) -> Tensors:
        return {key: tensor.float() for key, tensor in subset(self._tensors, f"encoder.{name}").items()}

    def _read(self, name: str, memory: torch.Tensor, rows: Node) -> Node:
        """Rows of a tensor of the state."""
        return op.gather(self._input(name, list(memory.shape)), rows, _numbers(0))

    def _subsample(self, x: Node, masks: list[Node]) -> tuple[Node, list[Node]]:
        """Builds `Subsampling`, with channels first: returns [B, T, D] and the next columns."""
        config, layers = self._config, self._config.subsampling_layers
        tensors = self._part("subsampling")
        channels, bins = config.subsampling_channels, config.subsampled_mel_bins[-1]
        x, columns = op.unsqueeze(x, _numbers(1)), []  # [B, 1, N, F]
        for layer in range(layers):
            # 1) zero what is not audio, in mel maybe NaN, and put the column of the last chunk in front
            is_audio = op.unsqueeze(masks[layer], _numbers([1, 3]))
            if layer == 0:
                x = op.select(op.greater(is_audio, _constant(0.5)), x, _constant(0.0))
            else:
                x = op.multiply(x, is_audio)
            column = self._read(f"column.{layer}", self._state.subsampling_columns[layer], self._slots)  # [B, F, C]
            column = op.unsqueeze(op.transpose(column, _numbers([0, 2, 1])), _numbers(2))
            last = (config.subsampling_factor * self._frames >> layer) - 1
            newest = op.slice(x, _numbers([last]), _numbers([last + 1]), _numbers([1]), _numbers([2]))  # [B, C, 1, F]
            columns.append(op.squeeze(op.transpose(newest, _numbers([0, 2, 3, 1])), _numbers(1)))
            x = op.concat([column, x], 2)
            # 2) strided convolution, then a pointwise one
            if layer == 0:
                x = _convolution(x, tensors["first.weight"], tensors["first.bias"], stride=2)
            else:
                name = f"depthwise.{layer - 1}"
                x = _convolution(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"], stride=2, groups=channels)
                name = f"pointwise.{layer - 1}"
                weight = tensors[f"{name}.weight"].view(channels, channels, 1, 1)
                x = _convolution(x, weight, tensors[f"{name}.bias"])
            x = op.relu(x)
        # 3) project [B, C, T, F'] -> [B, T, D]; channels come last, as a convolution leaves them in memory
        x = op.reshape(op.transpose(x, _numbers([0, 2, 3, 1])), _numbers([-1, self._frames, channels * bins]), False)
        return _linear(x, *projection(config, tensors)), columns

    def _feed_forward(self, x: Node, tensors: Tensors) -> Node:
        norm = subset(tensors, "norm")
        hidden = _linear_of_norm(x, norm, tensors["up.weight"], tensors.get("up.bias"))
        # In another shape, so that OpenVINO does not fuse it into the product: its kernel for both is slower than two.
        width = tensors["up.weight"].shape[0]
        hidden = op.swish(op.reshape(hidden, _numbers([-1, width]), False))
        hidden = op.reshape(hidden, _numbers([-1, self._frames, width]), False)
        bias = tensors["down.bias"] * 0.5 if "down.bias" in tensors else None
        return op.add(x, _linear(hidden, tensors["down.weight"] * 0.5, bias))

    def _attend(self, layer: int, x: Node, positions: torch.Tensor, tensors: Tensors) -> tuple[Node, Node]:
        """Returns x + attention and the chunk's keys and values [B, 2 * H, T, dh]."""
        config, state, frames = self._config, self._state, self._frames
        heads, d_head, past = config.n_heads, config.d_head, state.pages_per_slot * frames
        weights = AttentionWeights.prepare(config, positions, tensors)
        # 1) project queries, keys and values
        projected = _linear_of_norm(x, subset(tensors, "norm"), weights.qkv, weights.qkv_bias)  # [B, T, 3 * D]
        if frames == 1:
            projected = op.reshape(projected, _numbers([-1, 3 * heads, 1, d_head]), False)
        else:
            projected = op.reshape(projected, _numbers([-1, frames, 3 * heads, d_head]), False)
            projected = op.transpose(projected, _numbers([0, 2, 1, 3]))
        query, new = op.variadic_split(projected, _numbers(1), _numbers([heads, 2 * heads])).outputs()
        new_keys, new_values = op.split(new, _numbers(1), 2).outputs()  # [B, H, T, dh]
        pages = self._input(f"kv.{layer}", list(state.keys_values(layer).shape))
        keys = op.gather(pages, self._key_rows, _numbers(0))
        values = op.gather(pages, self._value_rows, _numbers(0))
        # 2) score positions by distance, then in the order of keys, and add the scores of contents
        by_distance = op.add(op.matmul(query, _constant(weights.positions), False, False), _constant(weights.bias))
        by_key = op.gather_elements(by_distance, self._columns, 3)  # [B, H, T, K]
        contents = [op.matmul(query, keys, False, True), op.matmul(query, new_keys, False, True)]
        scores = op.add(op.add(op.concat(contents, 3), by_key), self._bias)
        # 3) mix values, join heads, project
        shares = op.variadic_split(op.softmax(scores, 3), _numbers(3), _numbers([past, frames])).outputs()
        mixed = op.add(op.matmul(shares[0], values, False, False), op.matmul(shares[1], new_values, False, False))
        if frames > 1:
            mixed = op.transpose(mixed, _numbers([0, 2, 1, 3]))
        mixed = op.reshape(mixed, _numbers([-1, frames, config.d_model]), False)
        return op.add(x, _linear(mixed, tensors["out.weight"], tensors.get("out.bias"))), new

    def _convolve(self, layer: int, x: Node, tensors: Tensors) -> tuple[Node, Node]:
        """Returns x + convolution and its next tail [B, k - 1, D]."""
        d, frames, taps = self._config.d_model, self._frames, self._config.conv_kernel_size
        # 1) GLU, after the inputs of earlier chunks
        weight, bias = tensors["pointwise1.weight"], tensors.get("pointwise1.bias")
        both = _linear_of_norm(x, subset(tensors, "norm"), weight, bias)
        value, gate = op.split(both, _numbers(_LAST_AXIS), 2).outputs()
        glu = op.multiply(value, op.sigmoid(gate))  # [B, T, D]
        window = op.concat([self._read(f"tail.{layer}", self._state.conv_tails[layer], self._slots), glu], 1)
        tail = op.slice(window, _numbers([frames]), _numbers([frames + taps - 1]), _numbers([1]), _numbers([1]))
        # 2) causal depthwise convolution over the window
        kernel = tensors["depthwise.weight"]  # [D, k]
        if frames == 1:
            mixed = op.reduce_sum(op.multiply(window, _constant(kernel.t())), _numbers([1]), True)
        else:
            mixed = op.transpose(window, _numbers([0, 2, 1]))
            mixed = op.group_convolution(mixed, _constant(kernel.view(d, 1, 1, taps)), [1], [0], [0], [1])
            mixed = op.transpose(mixed, _numbers([0, 2, 1]))
        if "depthwise.bias" in tensors:
            mixed = op.add(mixed, _constant(tensors["depthwise.bias"].view(1, 1, d)))
        norm = subset(tensors, "depthwise_norm")
        mixed = op.swish(_norm(mixed, norm) if norm else mixed)
        # 3) projection
        return op.add(x, _linear(mixed, tensors["pointwise2.weight"], tensors.get("pointwise2.bias"))), tail


def _numbers(values: int | list[int]) -> Node:
    """An axis, a shape or indices."""
    return op.constant(np.array(values, np.int64))


def _constant(values: torch.Tensor | float) -> Node:
    return op.constant(torch.as_tensor(values, dtype=torch.float32).contiguous().numpy())  # copies


def _linear(x: Node, weight: torch.Tensor, bias: torch.Tensor | None) -> Node:
    product = op.matmul(x, _constant(weight), False, True)
    return product if bias is None else op.add(product, _constant(bias.view(1, 1, -1)))


def _linear_of_norm(x: Node, norm: Tensors, weight: torch.Tensor, bias: torch.Tensor | None) -> Node:
    """A linear layer of norm(x): the norm's scale and offset are folded into it, in double precision."""
    folded = weight.double() @ norm["bias"].double()
    folded = folded if bias is None else folded + bias.double()
    return _linear(_normalized(x), (weight.double() * norm["weight"].double()).float(), folded.float())


def _norm(x: Node, tensors: Tensors) -> Node:
    """Layer norm over the hidden axis of [B, T, D]."""
    scaled = op.multiply(_normalized(x), _constant(tensors["weight"].view(1, 1, -1)))
    return op.add(scaled, _constant(tensors["bias"].view(1, 1, -1)))


def _normalized(x: Node) -> Node:
    return op.mvn(x, _numbers([_LAST_AXIS]), True, NORM_EPSILON, "INSIDE_SQRT")


def _convolution(x: Node, weight: torch.Tensor, bias: torch.Tensor, stride: int = 1, groups: int = 1) -> Node:
    """Over [B, C, N, F], padded by two bins in front and one after where it is strided."""
    begins, ends = ([0, 2], [0, 1]) if stride > 1 else ([0, 0], [0, 0])
    if groups > 1:
        weight = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
        x = op.group_convolution(x, _constant(weight), [stride, stride], begins, ends, [1, 1])
    else:
        x = op.convolution(x, _constant(weight), [stride, stride], begins, ends, [1, 1])
    return op.add(x, _constant(bias.view(1, -1, 1, 1)))
