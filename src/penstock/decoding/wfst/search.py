"""WfstSearch: Viterbi beam search over a decoding graph for chunks of CTC log-probabilities.

After Galvez and Kaldewey, "GPU-accelerated WFST beam search decoder for CTC-based speech recognition". One step per
frame, so chunks of any length give the result of the whole utterance."""

import math
from typing import TYPE_CHECKING

import torch

from penstock.decoding.sizes import WfstLimits, WfstSizes
from penstock.decoding.tensors.graph_buckets import split_chunk
from penstock.decoding.tensors.tensor_tree import join_rows, map_tensors
from penstock.decoding.wfst.backpointers import ChunkLinks, ChunkTraceback, Ends, FlatNodes, LinkRecorder, chunk_links
from penstock.decoding.wfst.device_graph import DeviceGraph
from penstock.decoding.wfst.frame_step import FlatTokens, Frame, FrameStep, FusedFrameStep, StreamBoosts
from penstock.decoding.wfst.paths import BestPath, PathTracker
from penstock.decoding.wfst.ragged import DynamicShapes, Recombination, Shapes, StaticShapes
from penstock.decoding.wfst.state import NO_NODE, Tokens, WfstStates
from penstock.errors import SettingError
from penstock.kernels.capability import FUSED, TORCH, resolve
from penstock.kernels.graph_frame import FrameMemory

if TYPE_CHECKING:
    from penstock.decoding.wfst.captured_search import CapturedWfstSearch


def decode_chunk(
    search: "WfstSearch | CapturedWfstSearch",
    chunk: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    states: WfstStates,
    boosts: StreamBoosts | None = None,
    wants_links: torch.Tensor | None = None,
) -> tuple[BestPath, WfstStates, list[ChunkLinks]]:
    """Does `WfstSearch.decode`, with the same result for chunks of any length, also where tokens are dropped.

    chunk: log_probs, lengths, is_end. One whose nodes could outgrow their memory is decoded in halves, down to single
    frames, and the end of a segment after its last frame. So tokens are dropped as if each frame were a chunk. Waits
    for the device once.
    """
    log_probs, lengths, is_end = chunk
    path, after, links = search.decode(*chunk, states, boosts, wants_links)
    frames, ends = log_probs.shape[1], is_end & (lengths > 0)
    if not frames or not bool(path.may_overflow.any()) or (frames == 1 and not bool(ends.any())):
        return path, after, links
    if frames == 1:
        parts = [(log_probs, lengths, is_end & ~ends), (log_probs[:, :0], torch.zeros_like(lengths), is_end)]
    else:
        halves = split_chunk(log_probs, lengths, (frames + 1) // 2)
        parts = [(half.projected_frames, half.lengths, is_end & (half.remaining == 0)) for half in halves]
    paths, links = [], []
    for part in parts:
        *result, its_links = decode_chunk(search, part, states, boosts, wants_links)
        path, states = map_tensors(torch.clone, tuple(result))
        paths.append(path)
        links += [map_tensors(torch.clone, one) for one in its_links]
    return join_paths(paths), states, links


def join_paths(paths: list[BestPath]) -> BestPath:
    """The paths of consecutive parts as one: what became stable in each, then the last one's; does not synchronize."""
    *before, last = paths
    if not before:
        return last
    counts = [*(path.stable for path in before), last.lengths]
    fields = ("pieces", "words", "frames", "last_frames_before", "scores")
    joined = join_rows([tuple(getattr(path, name) for name in fields) for path in paths], counts)
    nodes = dict(zip(fields, joined, strict=True))
    stable = torch.stack([path.stable for path in paths]).sum(dim=0)
    may_overflow = torch.stack([path.may_overflow for path in paths]).amax(dim=0)
    lengths = torch.stack(counts).sum(dim=0)
    return last._replace(**nodes, lengths=lengths, stable=stable, may_overflow=may_overflow)


class WfstSearch:
    """The search; `decode` runs it eagerly, over what lives on a CPU and over all memory on other devices."""

    def __init__(
        self,
        graph: DeviceGraph,
        sizes: WfstSizes | None = None,
        limits: WfstLimits | None = None,
        kernels: str = TORCH,
    ):
        """kernels: as `capability.resolve` has it.

        SettingError where one state of the graph has more arcs than a frame may follow.
        """
        self.graph, self.sizes, self.limits = graph, sizes or WfstSizes(), limits or WfstLimits()
        largest = max(graph.largest_degree, graph.largest_closure)
        if largest > self.sizes.arcs:
            raise SettingError(
                f"wfst_max_active is {self.sizes.max_active}, but a state of the graph has {largest} arcs; "
                f"accepted: at least {-(-largest // (self.sizes.arcs // self.sizes.max_active))}"
            )
        self._kernels = resolve(kernels, graph.device)
        self._memory: FrameMemory | Recombination | None = None
        self._rows = 0

    @torch.inference_mode()
    def decode(
        self,
        log_probs: torch.Tensor,
        lengths: torch.Tensor,
        is_end: torch.Tensor,
        states: WfstStates,
        boosts: StreamBoosts | None = None,
        wants_links: torch.Tensor | None = None,
    ) -> tuple[BestPath, WfstStates, list[ChunkLinks]]:
        """Decodes one chunk of B streams.

        log_probs: [B, T, V + 1] float32, blank last, T may be 0; lengths: [B] int64 valid frames, 0 .. T; is_end: [B]
        bool, True adds final weights to the cost; states: before the chunk, not modified. Returns the best paths, the
        states after, and links. boosts: None where no row boosts anything. wants_links: [B] bool, rows whose links are
        returned, of one part of the chunk after the other; None: no row's are.
        """
        batch, frames = log_probs.shape[:2]
        if self._rows < batch:
            self._memory, self._rows = self.frame_memory(batch), batch
        memory = self._memory
        assert memory is not None
        if wants_links is not None and not isinstance(memory, Recombination):
            memory = self.frame_memory(batch, has_links=True)
        if self.graph.device.type == "cpu" and isinstance(memory, Recombination):
            shapes: Shapes = DynamicShapes()
        else:
            shapes = StaticShapes(self.graph.device, largest_capacity(self.sizes, batch, frames))
        chunk = log_probs, lengths, is_end
        path, after, links = self.run(shapes, memory, chunk, states, boosts, wants_links)
        return path, after, [] if links is None else [links]

    def frame_memory(self, batch: int, has_links: bool = False) -> FrameMemory | Recombination:
        """The memory of a frame of up to `batch` rows, by kernels or in PyTorch; kernels find no links."""
        sizes, device = self.sizes, self.graph.device
        if self._kernels == FUSED and not has_links:
            return FrameMemory(batch, sizes.max_active, sizes.arcs, sizes.hash_cells, device)
        return Recombination(batch, sizes.hash_cells, device)

    def run(
        self,
        shapes: Shapes,
        memory: FrameMemory | Recombination,
        chunk: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        states: WfstStates,
        boosts: StreamBoosts | None,
        wants_links: torch.Tensor | None = None,
    ) -> tuple[BestPath, WfstStates, ChunkLinks | None]:
        """`decode` for tensors of `shapes`; never waits for the host if they are fixed."""
        log_probs, lengths, is_end = chunk
        batch, frames, _ = log_probs.shape
        # 1) begin: costs of labels, and what rows take which frame
        is_blank = self._is_blank(log_probs)
        is_idle = self._is_idle(is_blank, lengths, states)
        label_costs = self._label_costs(log_probs)
        recorder = None
        if wants_links is not None:
            recorder = LinkRecorder(shapes, wants_links, self.limits.lattice_beam, self.sizes.alternative_links)
        step: FrameStep | FusedFrameStep
        if isinstance(memory, Recombination):
            step = FrameStep(self.graph, shapes, memory, self.sizes, self.limits.beam, batch)
            step.begin(label_costs.view(-1), states.lm_weights, states.bases, boosts, recorder)
        else:
            step = FusedFrameStep(self.graph, memory, self.limits.beam, batch)
            step.begin(label_costs.view(-1), states.lm_weights, states.bases, boosts)
        tokens, ends = self._flat_tokens(shapes, states)
        rows, numbers = (torch.arange(count, device=lengths.device) for count in (batch, frames))
        offsets = ((rows * frames + numbers.unsqueeze(1)) * label_costs.shape[2]).unbind()  # T times [B]
        # 2) one step per frame
        is_skipping = shapes.is_static or bool(is_idle.any())
        for number in range(frames):
            idle = is_idle[:, number] if is_skipping else None
            tokens = step(tokens, Frame(offsets[number], idle))
        # 3) finish: nodes of the frames; best paths, and the nodes and tokens to keep
        traceback = ChunkTraceback(
            self.graph, shapes, step.backpointers, label_costs, states.frames_seen, max_emitting=batch * self.sizes.arcs
        )
        nodes, ends, new = traceback.extend(self._flat_nodes(states), ends)
        ending_costs = self._ending_costs(tokens, is_end, states, boosts)
        tracker = PathTracker(self.graph, shapes, self.sizes, batch, frames)
        path, kept = tracker.finish(tokens, ends, nodes, states.node_counts + new, ending_costs, step.bases)
        last = (lengths - 1).clamp(min=0).unsqueeze(1)
        was_blank = states.was_blank
        if frames:
            was_blank = torch.where(lengths > 0, is_blank.gather(1, last).squeeze(1).long(), was_blank)
        links = None
        if recorder is not None:
            first_places = self._first_places(shapes, states)
            frames_of_links = chunk_links(step.backpointers, recorder, first_places)
            links = ChunkLinks(*frames_of_links, label_costs, states.frames_seen, tokens.rows, kept.is_stored)
        states = WfstStates(
            tokens=kept.tokens,
            token_counts=kept.token_counts,
            nodes=kept.nodes,
            node_counts=kept.node_counts,
            bases=step.bases,
            frames_seen=states.frames_seen + lengths,
            was_blank=was_blank,
            lm_weights=states.lm_weights,
            narrowed_frames=states.narrowed_frames + step.narrowed,
            dropped_tokens=states.dropped_tokens + kept.dropped,
        )
        return path, states, links

    def _first_places(self, shapes: Shapes, states: WfstStates) -> torch.Tensor:
        """Starts of the rows of `_flat_tokens`, [B] int64."""
        if shapes.is_static:
            width = states.tokens.states.shape[1]
            return torch.arange(len(states.bases), device=states.bases.device) * width
        return states.token_counts.cumsum(0) - states.token_counts

    def _label_costs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """[B, T, V + 2]: labels, blank, and the label of a frame that is not taken."""
        costs = torch.nn.functional.pad(-log_probs, (0, 1))
        if self.limits.blank_penalty:
            costs[:, :, self.graph.blank] += self.limits.blank_penalty
        return costs

    def _is_blank(self, log_probs: torch.Tensor) -> torch.Tensor:
        """[B, T] bool, True for frames that only a blank can explain, by `WfstLimits.skip_blank`."""
        if self.limits.skip_blank >= 1:
            return torch.zeros(log_probs.shape[:2], dtype=torch.bool, device=log_probs.device)
        return log_probs[:, :, self.graph.blank] >= math.log(self.limits.skip_blank)

    def _is_idle(self, is_blank: torch.Tensor, lengths: torch.Tensor, states: WfstStates) -> torch.Tensor:
        """[B, T] bool, True for frames after the end and for those of a run of blanks, except its first."""
        frames = torch.arange(is_blank.shape[1], device=lengths.device)
        before = torch.cat([states.was_blank.bool().unsqueeze(1), is_blank[:, :-1]], dim=1)[:, : is_blank.shape[1]]
        return (is_blank & before) | (frames >= lengths.unsqueeze(1))

    def _flat_tokens(self, shapes: Shapes, states: WfstStates) -> tuple[FlatTokens, Ends]:
        tokens, device = states.tokens, states.bases.device
        batch, width = tokens.states.shape
        is_live = torch.arange(width, device=device) < states.token_counts.unsqueeze(1)
        rows = torch.arange(batch, device=device).unsqueeze(1)
        nodes = _numbered(tokens.nodes, rows, states)
        if shapes.is_static:
            flat = self._all_tokens(tokens, is_live)
            return flat, Ends(torch.where(is_live, nodes, NO_NODE).flatten(), tokens.last_frames.flatten())
        live = is_live.flatten().nonzero().squeeze(1)
        fields = rows.expand(-1, width), tokens.states.long(), tokens.phrases.long(), tokens.costs
        ends = nodes, tokens.last_frames
        chosen = [field.flatten().index_select(0, live) for field in (*fields, *ends)]
        return FlatTokens(*chosen[:4]), Ends(*chosen[4:])

    def _all_tokens(self, tokens: Tokens, is_live: torch.Tensor) -> FlatTokens:
        """All slots, [B * K]."""
        batch, width = is_live.shape
        return FlatTokens(
            torch.arange(batch, device=is_live.device).repeat_interleave(width),
            torch.where(is_live, tokens.states, self.graph.dead_state).long().flatten(),
            tokens.phrases.long().flatten(),
            torch.where(is_live, tokens.costs, torch.inf).flatten(),
        )

    def _flat_nodes(self, states: WfstStates) -> FlatNodes:
        """All slots, also those without a node, which nothing refers to."""
        nodes = states.nodes
        rows = torch.arange(len(states.bases), device=states.bases.device).unsqueeze(1)
        is_live = torch.arange(nodes.parents.shape[1], device=rows.device) < states.node_counts.unsqueeze(1)
        parents = torch.where(is_live, _numbered(nodes.parents, rows, states), NO_NODE)
        fields = nodes.pieces, nodes.words, nodes.frames, nodes.last_frames_before, nodes.scores
        return FlatNodes(rows.expand_as(parents).flatten(), parents.flatten(), *(field.flatten() for field in fields))

    def ending_costs(
        self, states: WfstStates, is_end: torch.Tensor, boosts: StreamBoosts | None = None
    ) -> torch.Tensor:
        """[B, K] float32, costs of the tokens as `decode` ranks them; infinite where there is none."""
        places = torch.arange(states.tokens.states.shape[1], device=is_end.device)
        is_live = places < states.token_counts.unsqueeze(1)
        flat = self._all_tokens(states.tokens, is_live)
        return self._ending_costs(flat, is_end, states, boosts).view_as(is_live)

    def _ending_costs(
        self, tokens: FlatTokens, is_end: torch.Tensor, states: WfstStates, boosts: StreamBoosts | None
    ) -> torch.Tensor:
        """The tokens' costs; in rows that end, with final weights, and infinite where the state is not final.

        Where a row that ends has no token in a final state, final weights are left out.
        """
        finals = self.graph.final_weights.index_select(0, tokens.states)
        ended = finals * states.lm_weights.index_select(0, tokens.rows)
        ended = torch.where(finals < torch.inf, tokens.costs + ended, torch.inf)
        if boosts is not None and boosts.phrases is not None:
            ended = ended - boosts.phrases.final_scores(tokens.phrases)
        has_final = torch.zeros_like(states.frames_seen).scatter_reduce_(
            0, tokens.rows, (ended < torch.inf).long(), "amax"
        )
        return torch.where((is_end & has_final.bool()).index_select(0, tokens.rows), ended, tokens.costs)


def largest_capacity(sizes: WfstSizes, batch: int, frames: int) -> int:
    """The most entries that a `StaticShapes` will be asked for."""
    return batch * max(sizes.arcs, sizes.nodes + 2 * sizes.max_active * frames, sizes.path_width(frames))


def _numbered(nodes: torch.Tensor, rows: torch.Tensor, states: WfstStates) -> torch.Tensor:
    """Numbers of nodes for the whole batch, from those of their rows; int32."""
    return torch.where(nodes == NO_NODE, NO_NODE, nodes + (rows * states.nodes.parents.shape[1]).int())
