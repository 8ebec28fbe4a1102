"""Seeded inputs of the kernels' tests, and the tolerances between a kernel and its PyTorch reference."""

import torch

from penstock.kernels.contracts import JointWeights, LstmLayerWeights, NgramArcs, PredictorStates, PredictorWeights

# Sums are in float32 for all types. What differs is their order, and for 16-bit types one unit in the last place
# (2^-10, 2^-7) wherever a value is rounded to that type. The interpreter truncates bfloat16 instead of rounding it.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_joint(
    seed: int, labels: int, joint: int, durations: int, activation: str, dtype=torch.float32
) -> JointWeights:
    draw = generator(seed)
    outputs = labels + 1 + durations
    weight = 2 * torch.randn(joint, outputs, generator=draw) / joint**0.5
    return JointWeights(weight.to(dtype), torch.randn(outputs, generator=draw).to(dtype), labels, activation)


def random_predictor(
    seed: int, labels: int, width: int, joint: int, layers: int, dtype=torch.float32
) -> PredictorWeights:
    draw = generator(seed)

    def noise(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=draw) / shape[0] ** 0.5).to(dtype)

    stack = tuple(
        LstmLayerWeights(
            noise(width, 4 * width) if i else None, noise(width, 4 * width), noise(4 * width) if i else None
        )
        for i in range(layers)
    )
    table = torch.randn(labels + 1, 4 * width, generator=draw).to(dtype)
    return PredictorWeights(table, stack, noise(width, joint), noise(joint))


def random_predictor_states(seed: int, weights: PredictorWeights, rows: int) -> PredictorStates:
    draw = generator(seed)
    width, joint = weights.projection_weight.shape
    shapes = ((rows, joint), (rows, len(weights.layers), width), (rows, len(weights.layers), width))
    return PredictorStates(*(torch.randn(*s, generator=draw).to(weights.projection_weight.dtype) for s in shapes))


def random_arcs(seed: int, labels: int, states: int, order: int) -> NgramArcs:
    """A back-off automaton of random shape: state 0 is the empty context, others back off to lower levels."""
    draw = generator(seed)
    levels = torch.randint(1, max(order, 2), (states,), generator=draw)
    levels[0] = 0
    backoff_states = torch.zeros(states, dtype=torch.int64)
    keys: list[int] = []
    starts = [0, 0]
    for state in range(1, states):
        lower = (levels < levels[state]).nonzero().flatten()
        backoff_states[state] = lower[torch.randint(len(lower), (), generator=draw)]
        count = int(torch.randint(0, labels + 1, (), generator=draw)) if state % 5 else 0  # some without arcs
        own = torch.randperm(labels, generator=draw)[:count].sort().values
        keys += (state * labels + own).tolist()
        starts.append(len(keys))
    keys.append(states * labels)  # above all others
    backoff_scores = -torch.rand(states, generator=draw)
    backoff_scores[0] = 0
    return NgramArcs(
        torch.tensor(starts),
        torch.tensor(keys),
        -torch.rand(len(keys), generator=draw),
        torch.randint(states, (len(keys),), generator=draw),
        -5 * torch.rand(labels, generator=draw),
        torch.randint(states, (labels,), generator=draw),
        backoff_scores,
        backoff_states,
    )


def on_device(tree, device: str):
    """A tree of named tuples with its tensors on `device`."""
    if isinstance(tree, torch.Tensor):
        return tree.to(device)
    if not isinstance(tree, tuple):
        return tree
    children = [on_device(child, device) for child in tree]
    return type(tree)(*children) if hasattr(tree, "_fields") else tuple(children)
