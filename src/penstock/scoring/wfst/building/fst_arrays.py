"""Transducers as arrays, and to and from kaldifst through OpenFst's binary format.

kaldifst adds and reads arcs one Python call each; a file of all of them is read and written a thousand times faster.
"""

import struct
import tempfile
from pathlib import Path
from typing import NamedTuple

import kaldifst
import numpy as np

from penstock.errors import OutputError

EPSILON = 0
_MAGIC = 2125659606
_TYPES = b"\x05\x00\x00\x00const\x08\x00\x00\x00standard"
_VERSION, _FLAGS, _IS_EXPANDED = 2, 0, 1
_HEADER = struct.Struct("<iiQqqq")  # version, flags, properties, start, states, arcs
_STATE = np.dtype([("final", "<f4"), ("first", "<u4"), ("arcs", "<u4"), ("inputs", "<u4"), ("outputs", "<u4")])
_ARC = np.dtype([("input", "<i4"), ("output", "<i4"), ("weight", "<f4"), ("target", "<i4")])


class FstArrays(NamedTuple):
    """A transducer over the tropical semiring: S states, N arcs in any order. Label 0 is epsilon."""

    start: int
    sources: np.ndarray
    """[N] int32."""
    inputs: np.ndarray
    """[N] int32."""
    outputs: np.ndarray
    """[N] int32."""
    weights: np.ndarray
    """[N] float32, costs in nats."""
    targets: np.ndarray
    """[N] int32."""
    final_weights: np.ndarray
    """[S] float32, +inf: not final."""

    @property
    def state_count(self) -> int:
        """S."""
        return len(self.final_weights)

    def select(self, rows: np.ndarray) -> "FstArrays":
        """The same states with some of the arcs: a mask [N], or their numbers in the wanted order."""
        return self._replace(
            sources=self.sources[rows],
            inputs=self.inputs[rows],
            outputs=self.outputs[rows],
            weights=self.weights[rows],
            targets=self.targets[rows],
        )

    def __str__(self) -> str:
        return f"{self.state_count:,} states, {len(self.sources):,} arcs"


def join_arcs(start: int, final_weights: np.ndarray, *parts: tuple[np.ndarray | int | float, ...]) -> FstArrays:
    """A transducer of all arcs of `parts`: (sources, inputs, outputs, weights, targets), single values for all rows."""
    rows = [len(np.atleast_1d(part[0])) for part in parts]

    def column(place: int, dtype: type = np.int32) -> np.ndarray:
        values: list[np.ndarray] = [np.asarray(part[place], dtype) for part in parts]
        return np.concatenate([np.broadcast_to(each, count) for each, count in zip(values, rows, strict=True)])

    return FstArrays(
        start=start,
        sources=column(0),
        inputs=column(1),
        outputs=column(2),
        weights=column(3, np.float32),
        targets=column(4),
        final_weights=final_weights.astype(np.float32),
    )


def to_fst(arrays: FstArrays) -> "kaldifst.StdVectorFst":
    """The transducer in kaldifst; the arcs of a state keep their order."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "arrays.fst"
        path.write_bytes(_to_bytes(arrays))
        return kaldifst.StdVectorFst(kaldifst.StdConstFst.read(str(path)))


def from_fst(fst: "kaldifst.StdFst") -> FstArrays:
    """The arrays of a transducer, arcs by source state."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "arrays.fst"
        kaldifst.StdConstFst(fst).write(str(path))
        return _from_bytes(path.read_bytes())


def write_openfst(arrays: FstArrays, path: Path) -> None:
    """Writes a binary OpenFst file (`vector`, standard arcs); OutputError where it cannot be written."""
    if not to_fst(arrays).write(str(path)):
        raise OutputError(f"{path}: cannot be written")


def _to_bytes(arrays: FstArrays) -> bytes:
    by_source = arrays.select(np.argsort(arrays.sources, kind="stable"))
    count = arrays.state_count
    states = np.empty(count, _STATE)
    states["final"] = arrays.final_weights
    states["arcs"] = np.bincount(by_source.sources, minlength=count)
    states["first"] = np.cumsum(states["arcs"]) - states["arcs"]
    states["inputs"] = np.bincount(by_source.sources[by_source.inputs == EPSILON], minlength=count)
    states["outputs"] = np.bincount(by_source.sources[by_source.outputs == EPSILON], minlength=count)
    arcs = np.empty(len(by_source.sources), _ARC)
    arcs["input"], arcs["output"] = by_source.inputs, by_source.outputs
    arcs["weight"], arcs["target"] = by_source.weights, by_source.targets
    header = _HEADER.pack(_VERSION, _FLAGS, _IS_EXPANDED, arrays.start, count, len(arcs))
    return struct.pack("<i", _MAGIC) + _TYPES + header + states.tobytes() + arcs.tobytes()


def _from_bytes(data: bytes) -> FstArrays:
    place = 4 + len(_TYPES)
    *_, start, count, arc_count = _HEADER.unpack_from(data, place)
    place += _HEADER.size
    states = np.frombuffer(data, _STATE, max(count, 0), place)
    arcs = np.frombuffer(data, _ARC, max(arc_count, 0), place + states.nbytes)
    sources = np.repeat(np.arange(len(states), dtype=np.int32), states["arcs"])
    return FstArrays(
        start=int(start),
        sources=sources,
        inputs=np.ascontiguousarray(arcs["input"]),
        outputs=np.ascontiguousarray(arcs["output"]),
        weights=np.ascontiguousarray(arcs["weight"]),
        targets=np.ascontiguousarray(arcs["target"]),
        final_weights=np.ascontiguousarray(states["final"]),
    )
