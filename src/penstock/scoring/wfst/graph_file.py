"""A decoding graph as arrays, and the file that holds it: safetensors, read with numpy alone.

The graph is T∘L∘G: CTC labels in, words out. Arcs that consume a frame are a CSR by source state. In place of epsilon
arcs, a second CSR holds the min-plus closure of every state. So a search makes two passes over fixed arrays per frame.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from penstock.errors import GraphError, OutputError, SettingError, cut, naming, shown

Topology = Literal["normal", "compact"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
SUFFIX = ".safetensors"
NO_WORD = 0
_FORMAT, _FORMAT_VERSION = "penstock-decoding-graph", "1"
_SHORT_DIGEST = 12
_MIB = 1 << 20


@dataclass(frozen=True, eq=False)
class DecodingGraph:
    """S states, A emitting arcs, C closure entries, W words, P spellings, V tokens.

    Arrays are int32, weights float32 costs in nats: lower is better. They are those of the language model and the
    lexicon, unscaled. `read_graph` and `check` guarantee what is said here.
    """

    topology: Topology
    """"normal": one piece held over several frames is one token. "compact": each of its frames may be a token."""
    vocabulary_size: int
    """V of the model; V is also the label of blank."""
    tokenizer_sha256: str
    """Hex digest of the model's `tokenizer.model`."""
    start_state: int
    arc_offsets: np.ndarray
    """[S + 1]: the arcs of state s are `arc_offsets[s] .. arc_offsets[s + 1] - 1`, sorted by (label, word, target)."""
    arc_labels: np.ndarray
    """[A] token 0 .. V-1 or blank V."""
    arc_weights: np.ndarray
    """[A] finite."""
    arc_words: np.ndarray
    """[A] the word that begins on this arc; 0: none."""
    arc_targets: np.ndarray
    """[A]"""
    closure_offsets: np.ndarray
    """[S + 1]: the entries of state s; at least one each."""
    closure_targets: np.ndarray
    """[C] what state s reaches over epsilon arcs: first s itself, then sorted by (target, word), each pair once."""
    closure_weights: np.ndarray
    """[C] the least cost of the way there; 0 for s itself."""
    closure_words: np.ndarray
    """[C] the only word on the way; 0: none, as for s itself."""
    final_weights: np.ndarray
    """[S] cost of ending in a state; +inf: not final."""
    words: tuple[str, ...]
    """[W] distinct; word 0 is ""."""
    spelling_words: np.ndarray
    """[W + 1]: the spellings of word w are `spelling_words[w] .. spelling_words[w + 1] - 1`: none of word 0, at least
    one of every other, in the lexicon's order."""
    spelling_offsets: np.ndarray
    """[P + 1]: the tokens of spelling p are `spelling_tokens[spelling_offsets[p] : spelling_offsets[p + 1]]`."""
    spelling_tokens: np.ndarray
    """Tokens 0 .. V-1; at least one per spelling."""

    @property
    def state_count(self) -> int:
        """S."""
        return len(self.final_weights)

    @property
    def blank(self) -> int:
        """The label of blank, V."""
        return self.vocabulary_size

    @cached_property
    def largest_degree(self) -> int:
        """Most emitting arcs that leave one state."""
        return int(np.diff(self.arc_offsets).max())

    @cached_property
    def largest_closure(self) -> int:
        """Most closure entries of one state; 1 if no state has epsilon arcs."""
        return int(np.diff(self.closure_offsets).max())

    @property
    def array_bytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(getattr(self, name).nbytes for name in ARRAYS)

    def describe_size(self) -> str:
        """The sizes of the graph in words."""
        others = len(self.closure_targets) - self.state_count
        return (
            f"{self.state_count:,} states, {len(self.arc_labels):,} arcs (at most {self.largest_degree:,} per state), "
            f"{others:,} closure entries (at most {self.largest_closure - 1:,} per state), "
            f"{self.array_bytes / _MIB:.1f} MiB"
        )

    def spellings(self, word: int) -> list[list[int]]:
        """The token sequences of one word 1 .. W-1, the primary one first."""
        first, last = int(self.spelling_words[word]), int(self.spelling_words[word + 1])
        offsets = self.spelling_offsets
        return [self.spelling_tokens[offsets[each] : offsets[each + 1]].tolist() for each in range(first, last)]

    def check_model(self, vocabulary_size: int, tokenizer_sha256: str) -> None:
        """Raises GraphError unless the graph was built for a model of this vocabulary and this `tokenizer.model`."""
        _check_model((self.vocabulary_size, self.tokenizer_sha256), (vocabulary_size, tokenizer_sha256))

    def check(self) -> None:
        """Raises GraphError naming the first array that does not hold what its docstring says."""
        if self.topology not in TOPOLOGIES:
            raise GraphError(f"topology {shown(self.topology)}, expected {' or '.join(TOPOLOGIES)}")
        self._check_words()
        states, words = self.state_count, len(self.words)
        _check_floats("final_weights", self.final_weights, may_be_infinite=True)
        if not states or not np.isfinite(self.final_weights).any():
            raise GraphError("no state is final")
        _check_range("start_state", np.array([self.start_state], np.int32), states)
        for kind in ("arc", "closure"):
            entries = len(getattr(self, f"{kind}_targets"))
            _check_offsets(f"{kind}_offsets", getattr(self, f"{kind}_offsets"), states, entries, int(kind == "closure"))
            _check_range(f"{kind}_targets", getattr(self, f"{kind}_targets"), states)
            _check_range(f"{kind}_words", getattr(self, f"{kind}_words"), words, entries)
            _check_floats(f"{kind}_weights", getattr(self, f"{kind}_weights"), length=entries)
        _check_range("arc_labels", self.arc_labels, self.vocabulary_size + 1, len(self.arc_targets))
        own = self.closure_offsets[:-1]
        is_own = (self.closure_targets[own] == np.arange(states)) & (self.closure_words[own] == NO_WORD)
        if not (is_own & (self.closure_weights[own] == 0)).all():
            raise GraphError("closure_targets: the first entry of a state is not the state itself at cost 0")

    def _check_words(self) -> None:
        if not self.words or self.words[0] != "" or len(set(self.words)) != len(self.words):
            raise GraphError('words: expected distinct words, the first one ""')
        _check_offsets("spelling_words", self.spelling_words, len(self.words), len(self.spelling_offsets) - 1)
        counts = np.diff(self.spelling_words)
        if counts[0] or not (counts[1:] > 0).all():
            raise GraphError("spelling_words: expected no spelling of word 0 and at least one of every other word")
        spellings, tokens = int(self.spelling_words[-1]), len(self.spelling_tokens)
        _check_offsets("spelling_offsets", self.spelling_offsets, spellings, tokens, 1)
        _check_range("spelling_tokens", self.spelling_tokens, self.vocabulary_size)


ARRAYS = tuple(field.name for field in fields(DecodingGraph) if field.type is np.ndarray)
_FLOATS = {name for name in ARRAYS if name.endswith("_weights")}


def write_graph(graph: DecodingGraph, path: str | Path) -> None:
    """Writes the file in one step, so that no reader sees a part of it, and replaces `path`. Equal graphs, equal bytes.

    SettingError unless the name ends in `.safetensors`; OutputError where it cannot be written.
    """
    path = Path(path)
    check_name(path)
    metadata = {
        "format": _FORMAT,
        "version": _FORMAT_VERSION,
        "topology": graph.topology,
        "vocabulary_size": str(graph.vocabulary_size),
        "tokenizer_sha256": graph.tokenizer_sha256,
        "start_state": str(graph.start_state),
        "words": json.dumps(graph.words, ensure_ascii=False),
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        data = save({name: np.ascontiguousarray(getattr(graph, name)) for name in ARRAYS}, metadata)
        partial.write_bytes(_with_sorted_header(data))
        partial.replace(path)
    except (SafetensorError, OSError) as error:
        raise OutputError(f"{path}: cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _with_sorted_header(data: bytes) -> bytes:
    """The same file with its header in order: safetensors writes the metadata in another order each time."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(data)[end:]))


def check_name(path: Path) -> None:
    """Raises SettingError unless the name is that of a graph."""
    if path.suffix != SUFFIX:
        raise SettingError(f"{path}: the name of a decoding graph ends in {SUFFIX}")


def check_graph_file(path: str | Path, vocabulary_size: int, tokenizer_sha256: str) -> None:
    """GraphError unless the file is a graph for this model, by its metadata; reads no arrays."""
    try:
        with naming(path, GraphError):
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
            _check_format(metadata)
            built_for = int(metadata.get("vocabulary_size", 0)), metadata.get("tokenizer_sha256", "")
            _check_model(built_for, (vocabulary_size, tokenizer_sha256))
    except (SafetensorError, OSError, ValueError) as error:
        raise GraphError(f"{path}: cannot be read: {error}") from error


def _check_format(metadata: dict[str, str]) -> None:
    if (metadata.get("format"), metadata.get("version")) != (_FORMAT, _FORMAT_VERSION):
        raise GraphError("not a decoding graph of this version of Penstock")


def _check_model(built_for: tuple[int, str], model: tuple[int, str]) -> None:
    """Both: the size of the vocabulary, and the SHA-256 of `tokenizer.model`."""
    if model[0] != built_for[0]:
        raise GraphError(
            f"the graph is for a model of {built_for[0]} tokens, the model has {model[0]}; "
            "build it with `penstock graph build --model` for this model"
        )
    if model[1] != built_for[1]:
        raise GraphError(
            f"the graph is for the tokenizer with SHA-256 {built_for[1][:_SHORT_DIGEST]}..., the model's "
            f"is {model[1][:_SHORT_DIGEST]}...; build it with `penstock graph build --model` for this model"
        )


def read_graph(path: str | Path, memory_limit_bytes: int | None = None, memory_per_file: float = 1.0) -> DecodingGraph:
    """Reads and checks a graph.

    memory_per_file: memory that the caller needs, in sizes of the file. GraphError names the file if it is broken, or
    if this is above `memory_limit_bytes`: found from the file's size, before anything of this size is allocated.
    """
    path = Path(path)
    try:
        with naming(path, GraphError):
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                _check_format(metadata)
                _check_size(memory_per_file * path.stat().st_size, memory_limit_bytes)
                arrays = {name: np.array(file.get_tensor(name)) for name in ARRAYS}
            graph = _graph_from(metadata, arrays)
            graph.check()
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: a number type that numpy lacks
        raise GraphError(f"{path}: cannot be read: {error}") from error
    return graph


def _check_size(needed_bytes: float, memory_limit_bytes: int | None) -> None:
    """safetensors has checked that the arrays fill the file."""
    if memory_limit_bytes is not None and needed_bytes > memory_limit_bytes:
        raise GraphError(
            f"the graph takes {needed_bytes / _MIB:.1f} MiB, {memory_limit_bytes / _MIB:.1f} MiB are free; "
            "build it from fewer words or a smaller language model"
        )


def _graph_from(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> DecodingGraph:
    for name, array in arrays.items():
        wanted = np.dtype(np.float32 if name in _FLOATS else np.int32)
        if array.dtype != wanted or array.ndim != 1:
            raise GraphError(f"{name} is {array.dtype} {list(array.shape)}, expected one dimension of {wanted}")
    try:
        words: Sequence[object] = json.loads(metadata["words"])
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError("words: expected a list of strings")
        return DecodingGraph(
            topology=metadata["topology"],  # type: ignore[arg-type]  # checked by `check`
            vocabulary_size=int(metadata["vocabulary_size"]),
            tokenizer_sha256=metadata["tokenizer_sha256"],
            start_state=int(metadata["start_state"]),
            words=tuple(map(str, words)),
            **arrays,
        )
    except KeyError as error:
        raise GraphError(f"the metadata lack {error}") from error
    except ValueError as error:
        raise GraphError(f"the metadata are broken: {cut(str(error))}") from error


def _check_offsets(name: str, offsets: np.ndarray, rows: int, entries: int, least: int = 0) -> None:
    """A CSR's offsets: `rows` rows of at least `least` of `entries` entries."""
    if len(offsets) != rows + 1:
        raise GraphError(f"{name} has {len(offsets)} entries, expected {rows + 1}")
    if offsets[0] != 0 or offsets[-1] != entries or (np.diff(offsets) < least).any():
        raise GraphError(f"{name}: expected offsets that rise from 0 to {entries} by at least {least}")


def _check_range(name: str, values: np.ndarray, end: int, length: int | None = None) -> None:
    if length is not None and len(values) != length:
        raise GraphError(f"{name} has {len(values)} entries, expected {length}")
    if len(values) and not 0 <= values.min() <= values.max() < end:
        raise GraphError(f"{name}: values from {values.min()} to {values.max()}, expected 0 to {end - 1}")


def _check_floats(name: str, values: np.ndarray, may_be_infinite: bool = False, length: int | None = None) -> None:
    if length is not None and len(values) != length:
        raise GraphError(f"{name} has {len(values)} entries, expected {length}")
    if not (np.isfinite(values) | (may_be_infinite & (values == np.inf))).all():
        raise GraphError(f"{name}: a weight is not finite")
