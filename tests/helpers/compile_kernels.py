"""Compiles every kernel for a compute capability, without a device: prints one line per kernel with its shared memory.

Usage: compile_kernels.py CAPABILITY fp32|fp16|bf16 VARIANTS

A program of its own, because a process either interprets Triton or compiles it.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from penstock.kernels import joint, ngram, predictor, recombination
from penstock.kernels.contracts import HASH_MULTIPLIER, HASH_SHIFTS, NO_BID

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
JOINT = {
    "labels": 1024, "durations": 5, "joint": 640, "block_labels": joint.BLOCK_LABELS, "block_tail": 16,
    "block_joint": joint.BLOCK_JOINT,
}  # fmt: skip
_STEP = {
    "block_rows": predictor.BLOCK_ROWS, "block_columns": predictor.BLOCK_COLUMNS,
    "block_inner": predictor.BLOCK_INNER,
}  # fmt: skip


def _compile(kernel, pointers: dict[str, str], constants: dict, capability: int) -> None:
    """Arguments that are neither pointers nor constants are strides and counts."""
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    values = {places[name]: value for name, value in constants.items()}
    # What a launch finds out about torch's memory: it starts at multiples of 16 bytes.
    aligned = {places[name]: [["tt.divisibility", 16]] for name, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(kernel, signature, values, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert compiled.asm["cubin"]
    sys.stdout.write(f"{kernel.__name__} {capability} {compiled.metadata.shared}\n")


def _named(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def compile_all(capability: int, kind: str, variants: int) -> None:
    """Compiles every kernel for inputs of one type; the joint in `variants` variants."""
    sums, integers = "*fp32", "*i64"
    share = _named("*" + kind, "frame prediction label_weight tail_weight")
    share |= _named(sums, "label_bias tail_bias extra share_floats floats")
    share |= {"share_integers": "*i32", "integers": integers}
    pairs = joint.pairs_per_block(1000, _TYPES[kind])
    for activation, has_extra in (("tanh", True), ("sigmoid", False), ("relu", True))[:variants]:
        constants = JOINT | {"block_pairs": pairs, "activation": activation, "has_extra": has_extra}
        _compile(joint._share_kernel, share, constants, capability)
    merge = {"labels": JOINT["labels"], "block_pairs": 128, "has_extra": True}
    _compile(joint._merge_kernel, share, merge, capability)
    step = _named(
        "*" + kind,
        "label_gates inputs hidden cell input_weight hidden_weight weight bias new_hidden new_cell old_projected "
        "new_projected",
    ) | {"labels": integers, "is_label": "*i1"}
    for has_input in (False, True):
        constants = _STEP | {"width": 640, "pitch": 640, "has_input": has_input}
        _compile(predictor._layer_kernel, step, constants, capability)
    constants = _STEP | {"width": 640, "joint": 640, "pitch": 640}
    _compile(predictor._projection_kernel, step, constants, capability)
    arcs = _named(integers, "states labels arc_starts arc_keys arc_states root_states backoff_states next_states")
    arcs |= _named(sums, "arc_scores root_scores backoff_scores scores")
    constants = {"vocabulary": 1024, "backoffs": 5, "halvings": 11, "block": ngram.BLOCK_QUERIES}
    _compile(ngram._lookup_kernel, arcs, constants, capability)
    entries = _named(integers, "rows keys first_table second_table") | _named("*i1", "is_live is_kept")
    constants = {
        "cells": 8192, "multiplier": HASH_MULTIPLIER, "first_shift": HASH_SHIFTS[0], "second_shift": HASH_SHIFTS[1],
        "no_bid": NO_BID, "block": recombination.BLOCK_ENTRIES,
    }  # fmt: skip
    for step in range(4):
        pointers = entries | {"costs": sums}
        _compile(recombination._recombine_kernel, pointers, constants | {"step": step}, capability)


if __name__ == "__main__":
    compile_all(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
