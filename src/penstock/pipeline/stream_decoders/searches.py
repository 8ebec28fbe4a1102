"""Stream decoders of greedy and beam search, over transducers and CTC heads, and the searches that they run."""

from collections.abc import Sequence

import torch

from penstock.decoding.beam.hyps import TokenLists
from penstock.decoding.beam.memory import BeamStateStore
from penstock.decoding.beam.results import BeamReport, NBest
from penstock.decoding.beam.scratch import BeamNetwork
from penstock.decoding.beam.search import BeamAlgorithm, BeamSearch, CapturedBeamSearch, beam_with_driver
from penstock.decoding.ctc import CtcHead, CtcStateStore, CtcTokens, decode_greedily
from penstock.decoding.greedy.memory import BatchedHyps, GreedyStateStore
from penstock.decoding.greedy.search import CapturedSearch, GreedySearch, LabelLooping, with_driver
from penstock.decoding.sizes import CTC_LABEL_BONUS, BeamSizes
from penstock.decoding.tensors.tensor_tree import copy_to_device, map_tensors, tree_to_host
from penstock.decoding.transducer.interface import IlmWeights, TransducerNetwork
from penstock.graphs.program import Driver
from penstock.model.config import IlmPair
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.results.words import NOTHING, Decoded, Token, TokenAlternative
from penstock.pipeline.stream_decoders.base import Chunk, StreamDecoder, TruncationCounters, TruncationLog, keep_states
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from penstock.scoring.fusion import Fusion
from penstock_common.options import TRANSDUCER_BEAMS


class SearchFactory:
    """Builds searches from the decoding options: limits and CUDA graph driver."""

    def __init__(self, decoding: DecodingConfig, driver: Driver, max_batch: int, chunk_encoder_frames: int):
        """max_batch, chunk_encoder_frames: the largest batch and the chunk length that graphs are captured for."""
        self._decoding = decoding
        self._driving = driver, max_batch, chunk_encoder_frames

    def greedy(self, network: TransducerNetwork, fusion: Fusion | None = None) -> GreedySearch | CapturedSearch:
        """Returns label-looping search."""
        search = LabelLooping(network, max_symbols=self._decoding.max_symbols, fusion=fusion)
        return with_driver(search, *self._driving)

    def beam(self, network: BeamNetwork, name: str, fusion: Fusion | None = None) -> BeamSearch | CapturedBeamSearch:
        """Returns the search `name` of `decoding_config.BEAM_DECODERS`, for states of `beam_sizes(network)`.

        It is captured if the setting `capture_beams` says so: each is memory and seconds at a start.
        """
        algorithm = BeamAlgorithm(name) if name in TRANSDUCER_BEAMS else BeamAlgorithm.ALSD
        search = BeamSearch(
            network, algorithm, fusion, max_symbols=self._decoding.max_symbols, label_bonus=CTC_LABEL_BONUS
        )
        if not self._decoding.capture_beams:
            return search
        return beam_with_driver(search, *self._driving, self.beam_sizes(network))

    def beam_sizes(self, network: BeamNetwork) -> BeamSizes:
        """Capacity of a slot; no hypothesis of a CTC beam lags, so it carries no frames."""
        sizes = BeamSizes(self._decoding.beam_size)
        return sizes._replace(carried_encoder_frames=0) if isinstance(network, CtcHead) else sizes


class GreedyStreamDecoder(StreamDecoder):
    """Label-looping. A second search, without external scores, runs batches in which no stream uses any."""

    needs_frames = True

    def __init__(self, searches: SearchFactory, network: TransducerNetwork, slots: int, fusion: StreamFusion):
        self._plain, self._fused = searches.greedy(network), searches.greedy(network, fusion.fusion)
        self._fusion = fusion
        self._state = GreedyStateStore(network, slots)
        self._network = network
        self._device = network.device

    def open(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Resets to hypotheses without labels."""
        default = self._network.config.ilm_greedy or IlmPair()
        ilm = self._network.ilm_weights([chosen.ilm or default for chosen in options])
        self._state.reset(copy_to_device(slots, torch.int64, self._device), self._fusion.start_states(slots), ilm)

    def begin_segment(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """The hypotheses do not change."""
        self._state.begin_segment(copy_to_device(slots, torch.int64, self._device))

    def restart_phrases(self, slot: int) -> None:
        """The hypothesis does not change."""
        self._state.restart_phrases(copy_to_device([slot], torch.int64, self._device), self._fusion.phrase_start(slot))

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Every label is stable."""
        slots = copy_to_device(chunk.slots, torch.int64, self._device)
        is_fused = self._fusion.is_used(chunk.slots)
        search, store = (self._fused, self._state) if is_fused else (self._plain, self._state.plain)
        projected = self._network.project_encoder(chunk.encoded, chunk.prompts)
        # `gather` has made a copy, so the search may write to it.
        hyps, states = search.decode(projected, chunk.lengths, store.gather(slots), overwrites_states=True)
        keep_states(chunk, store, slots, states)
        return [Decoded(tokens, [], []) if tokens else NOTHING for tokens in _greedy_tokens(hyps)]


class BeamStreamDecoder(StreamDecoder):
    """A beam search, with a second one for streams with external scores as `GreedyStreamDecoder` has."""

    needs_frames = False

    def __init__(
        self, name: str, searches: SearchFactory, network: BeamNetwork, state: BeamStateStore, fusion: StreamFusion
    ):
        """name: of `decoding_config.BEAM_DECODERS`. state: shared by the beam decoders of a network, because a stream
        belongs to only one of them."""
        self._plain, self._fused = searches.beam(network, name), searches.beam(network, name, fusion.fusion)
        self.truncation = TruncationLog(name, state.slots)
        self._fusion = fusion
        self._state = state
        self._n_best = [0] * state.slots
        self._network = network
        self._device = state.device

    def open(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Resets to beams of one empty hypothesis."""
        sizes = copy_to_device([o.beam_size for o in options], torch.int64, self._device)
        fusion, ilm = self._fusion.start_states(slots), self._ilm_weights(options)
        self._state.reset(copy_to_device(slots, torch.int64, self._device), sizes, fusion, ilm)
        for slot, chosen in zip(slots, options, strict=True):
            self._n_best[slot] = chosen.n_best
        self.truncation.begin(slots)

    def begin_segment(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """The beam becomes its best hypothesis."""
        rows = copy_to_device(slots, torch.int64, self._device)
        search = self._fused if self._fusion.is_used(slots) else self._plain
        # The hypothesis that was reported as final: ranked like that, with the scores of ending.
        self._state.begin_segment(rows, search.n_best(self._state.gather(rows)).places[:, 0])
        self.truncation.begin(slots)

    def restart_phrases(self, slot: int) -> None:
        """Hypotheses lose the boosts of phrases that they have begun."""
        rows = copy_to_device([slot], torch.int64, self._device)
        self._state.restart_phrases(rows, self._fusion.phrase_start(slot), self._fusion.phrases.final_scores)

    def _ilm_weights(self, options: Sequence[ResolvedOptions]) -> IlmWeights:
        if isinstance(self._network, CtcHead):
            return ()
        default = self._network.config.ilm_beam or IlmPair()
        return self._network.ilm_weights([chosen.ilm or default for chosen in options])

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Labels that all hypotheses share are stable. At the end of a segment the best hypothesis is final."""
        slots = copy_to_device(chunk.slots, torch.int64, self._device)
        is_final = copy_to_device(chunk.is_final, torch.bool, self._device)
        search = self._fused if self._fusion.is_used(chunk.slots) else self._plain
        projected = self._network.project_encoder(chunk.encoded, chunk.prompts)
        update, states = search.decode(projected, chunk.lengths, is_final, self._state.gather(slots))
        keep_states(chunk, self._state, slots, states)
        # Only for ends of segments: it sorts the hypotheses of all beams.
        best = search.n_best(states) if any(chunk.is_final) else None
        report = BeamReport(update, states.forced_blanks, states.pruned_hypotheses, best)
        return self._to_decoded(chunk, report.to_host())

    def _to_decoded(self, chunk: Chunk, report: BeamReport) -> list[Decoded]:
        """Converts a report on the host to tokens, and records truncation."""
        stable, unstable = _tokens(report.update.stable), _tokens(report.update.unstable)
        alternatives = [] if report.best is None else _alternatives(report.best)
        counters = map(TruncationCounters, report.forced_blanks.tolist(), report.pruned_hypotheses.tolist())
        decoded = []
        for row, (slot, is_final, truncated) in enumerate(zip(chunk.slots, chunk.is_final, counters, strict=True)):
            if row not in chunk.copies:
                self.truncation.add(slot, truncated, is_final)
            if is_final:
                best = alternatives[row]
                decoded.append(Decoded(stable[row], best[0].tokens, best[: self._n_best[slot]]))
            elif stable[row] or unstable[row]:
                decoded.append(Decoded(stable[row], unstable[row], []))
            else:
                decoded.append(NOTHING)
        return decoded


class CtcStreamDecoder(StreamDecoder):
    """Greedy search over the CTC head's log-probabilities."""

    needs_frames = True

    def __init__(self, head: CtcHead, slots: int):
        self._head = head
        self._state = CtcStateStore(head, slots)

    def open(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """Resets to streams without frames."""
        self._state.reset(copy_to_device(slots, torch.int64, self._head.device))

    def begin_segment(self, slots: Sequence[int], options: Sequence[ResolvedOptions]) -> None:
        """An open token, which was reported, goes on but is not reported again."""
        self._state.begin_segment(copy_to_device(slots, torch.int64, self._head.device))

    def decode(self, chunk: Chunk) -> list[Decoded]:
        """Tokens that ended are stable; one that the next frame may repeat is not."""
        slots = copy_to_device(chunk.slots, torch.int64, self._head.device)
        log_probs = self._head.log_probs(chunk.encoded, chunk.prompts)
        update, states = decode_greedily(log_probs, chunk.lengths, self._state.gather(slots))
        keep_states(chunk, self._state, slots, states)
        host = update if update.open.labels.device.type == "cpu" else tree_to_host(update)
        rows = zip(_ctc_tokens(host.closed), _ctc_tokens(host.open), strict=True)
        return [Decoded(*row, []) if any(row) else NOTHING for row in rows]


def _greedy_tokens(hyps: BatchedHyps) -> list[list[Token]]:
    host = hyps.to_host()
    counts = host.lengths.tolist()
    if not any(counts):
        return [[] for _ in counts]
    return _rows_of_tokens((host.labels, host.timestamps, host.durations, host.scores), counts)


def _tokens(lists: TokenLists) -> list[list[Token]]:
    """lists: [B, M] on the host."""
    tokens, lengths = lists
    fields = (tokens.labels, tokens.timestamps, tokens.durations, tokens.acoustic_scores)
    return _rows_of_tokens(fields, lengths.tolist())


def _rows_of_tokens(fields: tuple[torch.Tensor, ...], counts: list[int]) -> list[list[Token]]:
    """fields: of the tokens, each [B, M] on the host; counts: of each row's tokens."""
    longest = max(counts)
    columns = [field[:, :longest].tolist() for field in fields]
    return [
        [Token(*values) for values in zip(*(column[row][:count] for column in columns), strict=True)] if count else []
        for row, count in enumerate(counts)
    ]


def _alternatives(best: NBest) -> list[list[TokenAlternative]]:
    """Returns the existing hypotheses of each stream, at least one. best: on the host."""
    batch, beam_size = best.scores.shape
    tokens = _tokens(map_tensors(lambda t: t.flatten(0, 1), best.unstable))
    scores, acoustic = best.scores.tolist(), best.acoustic_scores.tolist()
    return [
        [
            TokenAlternative(tokens[row * beam_size + k], scores[row][k], acoustic[row][k])
            for k in range(beam_size)
            if k == 0 or scores[row][k] > float("-inf")
        ]
        for row in range(batch)
    ]


def _ctc_tokens(tokens: CtcTokens) -> list[list[Token]]:
    *fields, lengths = tokens
    return [[one for one in row if one.timestamp >= 0] for row in _rows_of_tokens(tuple(fields), lengths.tolist())]
