"""Tensors of a bundle that are stored in int8, beside those that are stored as they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import CheckpointError, shown
from penstock.model.bundle_files import WEIGHTS_FILE, Shapes, check_files, read_tensors

if TYPE_CHECKING:  # a configuration can be checked without importing torch
    import torch

_PRECISIONS = ("float32", "int8")
_LARGEST, _FACTORS = ".largest", ".factors"


class Int8Tensor(NamedTuple):
    """A tensor W [out, in] in int8."""

    numbers: "torch.Tensor"
    """[out, in] int8, of W * factors."""
    largest: "torch.Tensor"
    """[out], the largest magnitude of each row of W * factors, which is 127."""
    factors: "torch.Tensor"
    """[in], 1 where channels are not smoothed."""


class StoredBundle:
    """A bundle opened for reading: its files are checked at once, tensors are read on demand, by each process its own.

    Raises CheckpointError with the name of a file that is missing or, unless it `is_verified`, damaged.
    """

    def __init__(
        self,
        directory: Path,
        document: dict[str, Any],
        files: tuple[str, ...],
        shapes: Shapes,
        int8: frozenset[str],
        is_verified: bool,
    ):
        """document: config.json; files: those beside it; shapes: of all tensors; int8: names of those in int8."""
        self.directory, self.int8 = directory, int8
        self.source: dict[str, str] = document.get("source", {})
        self._path, self._shapes = directory / WEIGHTS_FILE, shapes
        for name in files:
            if not (directory / name).is_file():
                raise CheckpointError(f"{directory}: {name} is missing")
        if not is_verified:
            check_files(directory, document, files)

    def tensors(self, *prefixes: str, as_stored: bool = False) -> "dict[str, torch.Tensor]":
        """Returns the tensors whose names start with one of `prefixes` (all by default), as float32 on the CPU.

        as_stored: as they are in the file, float32 or float16. They are copies: one tensor that stayed mapped would
        keep all pages of the file that were read in memory. Those in int8 are float32 in any case.
        Raises CheckpointError with the name of a tensor that is missing, is not finite or has another shape or type,
        and of scales and factors in int8 that are not positive.
        """
        wanted = {n: s for n, s in self._shapes.items() if not prefixes or n.startswith(prefixes)}
        tensors = read_tensors(self._path, wanted, self.int8)
        for name in self.int8 & wanted.keys():
            tensors[name] = self._dequantized(name, tensors[name], wanted[name])
        return {name: tensor if as_stored else tensor.float() for name, tensor in tensors.items()}

    def factors(self, name: str) -> "torch.Tensor":
        """Returns the factors [in] of a tensor in int8, all 1 where its channels are not smoothed."""
        return self._read_positive({name + _FACTORS: self._shapes[name][1:]})[name + _FACTORS]

    def _dequantized(self, name: str, numbers: "torch.Tensor", shape: tuple[int, ...]) -> "torch.Tensor":
        """The largest of each row is what it was, so that the same int8 numbers follow from these."""
        parts = self._read_positive({name + _LARGEST: shape[:1], name + _FACTORS: shape[1:]})
        scaled = numbers.float() * (parts[name + _LARGEST].double() / 127).unsqueeze(1)
        return scaled.div_(parts[name + _FACTORS]).float()

    def _read_positive(self, wanted: Shapes) -> "dict[str, torch.Tensor]":
        tensors = read_tensors(self._path, wanted, self.int8)
        for name, tensor in tensors.items():
            if not bool((tensor > 0).all()):
                raise CheckpointError(f"{self._path}: tensor {name} has numbers that are not positive")
        return tensors


def int8_parts(tensors: dict[str, Int8Tensor] | None) -> "dict[str, dict[str, torch.Tensor]]":
    """Tensors that are written in place of each tensor."""
    return {
        name: {name: tensor.numbers, name + _LARGEST: tensor.largest, name + _FACTORS: tensor.factors}
        for name, tensor in (tensors or {}).items()
    }


def int8_keys(tensors: dict[str, Int8Tensor] | None) -> dict[str, Any]:
    """The keys of config.json that name them."""
    return {"precision": "int8", "int8": sorted(tensors)} if tensors else {}


def int8_names(document: dict[str, Any], shapes: Shapes, what: str, path: Path) -> frozenset[str]:
    """The tensors in int8 that a document names; shapes: of those that may be, the matrices of `what`."""
    precision, names = document.get("precision", _PRECISIONS[0]), document.get("int8", [])
    if precision not in _PRECISIONS:
        raise CheckpointError(f'{path}: "precision" is {shown(precision)}; accepted: {", ".join(_PRECISIONS)}')
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not is_list or any(len(shapes.get(name, ())) != 2 for name in names) or bool(names) != (precision == "int8"):
        raise CheckpointError(f'{path}: "int8" is {shown(names)}; accepted: the matrices of the {what} in int8')
    return frozenset(names)
