"""Lattices of the streams that want alternatives from a search over a decoding graph."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from penstock.decoding.tensors.tensor_tree import copy_to_device, map_tensors, tree_to_host
from penstock.decoding.wfst.backpointers import ChunkLinks
from penstock.decoding.wfst.frame_step import StreamBoosts
from penstock.decoding.wfst.lattice import HostLinks, Lattice, LatticeArcs
from penstock.decoding.wfst.n_best import PathEnd, SegmentLattice
from penstock.decoding.wfst.search import WfstSearch
from penstock.decoding.wfst.state import StartChoices, StartStates, WfstStates


class _Wanted(NamedTuple):
    lattice: Lattice
    paths: int
    """Alternatives at the end of the segment."""

    def copied(self) -> "_Wanted":
        """The same by itself."""
        return self._replace(lattice=self.lattice.copied())


class EndedSegment(NamedTuple):
    """The results at a segment's end."""

    lattice: SegmentLattice
    paths: list[PathEnd]
    """Best first."""


class LatticeStore:
    """One lattice for each slot that wants one."""

    def __init__(self, search: WfstSearch, start: StartStates, words: Sequence[str]):
        """words: texts by number."""
        self._search, self._start, self._words = search, start, words
        self._arcs, self._beam = LatticeArcs.of(search.graph), search.limits.lattice_beam
        self._wanted: dict[int, _Wanted] = {}

    def open(self, slot: int, count: int, choices: StartChoices) -> None:
        """Begins a segment with `count` alternatives, 0 for none."""
        self._wanted.pop(slot, None)
        if count:
            lattice = Lattice(self._arcs, self._start.links(choices, self._beam), self._beam)
            self._wanted[slot] = _Wanted(lattice, count)

    def wants_links(self, slots: Sequence[int], device: torch.device) -> torch.Tensor | None:
        """[B] bool, True where the slot has a lattice; None where none has."""
        wants = [slot in self._wanted for slot in slots]
        return copy_to_device(wants, torch.bool, device) if any(wants) else None

    def add(self, slots: Sequence[int], wants_links: torch.Tensor, parts: Sequence[ChunkLinks]) -> None:
        """Adds the links of a chunk; wants_links: [B] bool on the device."""
        for links in parts:
            host = HostLinks.fetched(links, wants_links)
            for row, slot in enumerate(slots):
                if slot in self._wanted:
                    self._wanted[slot].lattice.add(host, row)

    def copy(self, slots: Sequence[int]) -> dict[int, _Wanted]:
        """The lattices of `slots`, where they have one, for `put_back` after a chunk that the streams do not have."""
        return {slot: self._wanted[slot].copied() for slot in slots if slot in self._wanted}

    def put_back(self, kept: Mapping[int, _Wanted]) -> None:
        """Makes the lattices what they were at `copy`."""
        self._wanted.update(kept)

    def end(
        self, rows: Mapping[int, int], states: WfstStates, costs: torch.Tensor, boosts: StreamBoosts | None
    ) -> dict[int, EndedSegment]:
        """Ends the segments of `rows`, slots by row; of a batch with states and best costs [B] after the last chunk."""
        rows = {row: slot for row, slot in rows.items() if slot in self._wanted}
        if not rows:
            return {}
        chosen = copy_to_device(list(rows), torch.int64, costs.device)
        states, costs = map_tensors(lambda t: t.index_select(0, chosen), (states, costs))
        if boosts is not None:
            boosts = boosts._replace(table_rows=boosts.table_rows.index_select(0, chosen))
        ending_costs = self._search.ending_costs(states, torch.ones_like(chosen, dtype=torch.bool), boosts)
        if chosen.device.type != "cpu":
            ending_costs, costs = tree_to_host((ending_costs, costs))
        ended = {}
        for (row, slot), ending, cost in zip(rows.items(), ending_costs.numpy(), costs.tolist(), strict=True):
            lattice, paths = self._wanted.pop(slot)
            segment = SegmentLattice(*lattice.end(ending), self._beam, cost, self._words)
            ended[row] = EndedSegment(segment, segment.best(paths))
        return ended
