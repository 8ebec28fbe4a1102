"""Third stage: encoder frames in, words out.

Groups a batch by stream decoder. Independent of searches and of the network's heads.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from penstock.decoding.tensors.tensor_tree import copy_to_device
from penstock.encoder.int8 import activation_bits
from penstock.encoder.precision import FLOAT32, INT8, prepare_precision
from penstock.errors import ErrorCode, StreamError
from penstock.frontend.ranks import rounds
from penstock.graphs.select import NO_GRAPHS, select_driver
from penstock.kernels.capability import TORCH, resolve
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext
from penstock.model.tokenizer import Tokenizer
from penstock.pipeline.memory.server_memory import MAX_DECODER_STEP
from penstock.pipeline.options.decoding_config import DEFAULT_DECODING, DecodingConfig
from penstock.pipeline.options.offers import offer_decoders, offer_languages
from penstock.pipeline.options.stream_options import ResolvedOptions
from penstock.pipeline.options.windows import live_window
from penstock.pipeline.results.results import StreamResult, StreamText
from penstock.pipeline.results.speakers import SpeakerFrames
from penstock.pipeline.results.words import NOTHING, Decoded
from penstock.pipeline.slots.guard import STEP_ERRORS, SlotGuard
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.ticket import END, FINALIZE, LIVE, POLL, START, Column, Ticket
from penstock.pipeline.stages.decoder_figures import FigurePlaces
from penstock.pipeline.stages.decoder_rows import DecodedRows, DecoderRows, padded, rows_of_tickets
from penstock.pipeline.stages.decoder_speakers import SpeakerPlaces
from penstock.pipeline.stages.decoding_steps import Endpoints, RowSteps, SegmentPart, Step
from penstock.pipeline.stages.requests import answer_requests
from penstock.pipeline.stream_decoders.base import NO_TRUNCATION, Chunk, TruncationCounters, TruncationLog
from penstock.pipeline.stream_decoders.builder import DecoderParts, build_stream_decoders
from penstock.pipeline.stream_decoders.fusion import StreamFusion
from penstock.runtime import check_device_works, send_to_device
from penstock_common.options import CTC

MAX_CAPTURED_BATCH = 512
"""Streams of one step with CUDA graphs; without them `MAX_DECODER_STEP`."""
_NOT_FINITE = "the model computes NaN for this audio"


class DecoderStage:
    """Decodes a batch of streams from their saved states, each with the decoder of its options."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        slots: int,
        ledger: SlotLedger,
        device: str = "cpu",
        decoding: DecodingConfig = DEFAULT_DECODING,
        context: AttentionContext | None = None,
        precision: str = FLOAT32,
    ):
        """context: sets the chunk length that graphs are captured for; the checkpoint's default if None. precision: the
        encoder's. With int8 large products of the predictor are in int8, too; all else here is float32, in TF32 unless
        it is float32."""
        self._config, precision = checkpoint.config, checkpoint.choose_precision(precision, device)
        self._device = prepare_precision(precision, device)
        self._chunk_encoder_frames = checkpoint.config.encoder.decoding_chunk_frames(context)
        self._tokenizer = Tokenizer(checkpoint.tokenizer_path)
        self._fusion = StreamFusion(checkpoint, self._tokenizer, decoding, slots, device)
        offer, choice = offer_decoders(checkpoint.config, decoding), select_driver(decoding.cuda_graphs, device)
        parts = DecoderParts(
            checkpoint=checkpoint,
            decoding=decoding,
            fusion=self._fusion,
            driver=choice.driver,
            device=self._device,
            slots=slots,
            max_batch=min(slots, MAX_CAPTURED_BATCH),
            chunk_encoder_frames=self._chunk_encoder_frames,
            has_int8=precision == INT8 and activation_bits() > 0,
        )
        self._stream_decoders = build_stream_decoders(offer, parts)
        self._decoders = list(self._stream_decoders.values())
        languages = offer_languages(checkpoint, decoding)
        ilm_alpha, ilm_beta = offer.ilm.get(offer.default, (None, None))
        self._default = ResolvedOptions(
            decoder=offer.default,
            ilm_alpha=ilm_alpha,
            ilm_beta=ilm_beta,
            prompt=languages.prompt(languages.default),
        )
        self._prompts = torch.zeros(slots, dtype=torch.int64, device=self._device) if languages.names else None
        """The prompt of each slot's stream."""
        self.driver_name = choice.driver.name
        """CUDA graph mode of the searches, for the log."""
        self.kernels = TORCH if offer.ilm else resolve(decoding.kernels, self._device, torch.float32)
        """Kernels of greedy search, "torch" or "fused", for the log."""
        # By slot, for its stream:
        self._options = [ResolvedOptions()] * slots
        self._decoder_numbers = np.zeros(slots, np.int64)  # in `_decoders`
        self._texts: dict[int, StreamText] = {}
        self._has_unstable = np.zeros(slots, bool)  # tokens in its text
        self._carries_state = np.zeros(slots, bool)  # through endpoints
        self._speakers = SpeakerPlaces()
        self._figures = FigurePlaces()
        self._changes: dict[int, deque[ResolvedOptions]] = {}  # of running streams, one for each end that is to come
        self._max_step = MAX_DECODER_STEP if choice.driver.name == NO_GRAPHS else MAX_CAPTURED_BATCH
        self._endpoints = Endpoints(slots, self._config, self._chunk_encoder_frames, self._tokenizer.marks)
        self._guard = SlotGuard("decoder", slots, ledger)

    @property
    def decoders(self) -> tuple[str, ...]:
        """Names of the decoders, for the log."""
        return tuple(self._stream_decoders)

    @property
    def truncation(self) -> TruncationCounters:
        """Truncation counters of all beams since the start."""
        totals = [log.total for log in self._truncation_logs()]
        return TruncationCounters(*map(sum, zip(NO_TRUNCATION, *totals, strict=True)))

    def _truncation_logs(self) -> list[TruncationLog]:
        logs = (getattr(decoder, "truncation", None) for decoder in self._stream_decoders.values())
        return [log for log in logs if log is not None]

    @torch.inference_mode()
    def warm_up(self, streams: int) -> None:
        """Decodes one chunk of `streams` streams with each decoder: memory is allocated before the first request."""
        slots = list(range(min(streams, len(self._options))))
        width = self._config.encoder.d_model
        encoded = torch.zeros(len(slots), self._chunk_encoder_frames, width, device=self._device)
        lengths = torch.full((len(slots),), self._chunk_encoder_frames, device=self._device)
        for decoder in self._stream_decoders.values():
            # Beam size 1: tensors have the shapes of a full beam, and a beam of silence must prune nothing.
            decoder.open(slots, [ResolvedOptions()] * len(slots))
            decoder.decode(Chunk(slots, encoded, lengths, [False] * len(slots), self._prompts_of(slots)))
        for log in self._truncation_logs():
            log.total = NO_TRUNCATION  # without weights, a graph search of silence fills its beam

    def process_tickets(
        self,
        tickets: list[Ticket | StreamError],
        encoded: list[torch.Tensor],
        speakers: Sequence[SpeakerFrames | None] | None = None,
    ) -> list[DecodedRows | StreamError]:
        """Returns the replies to a batch of requests, or why one is rejected as a whole.

        encoded: of each request [T, D], the frames of all rows; speakers: of those by `asr_batch_speakers`. Rows of a
        stream are processed in order. Raises DeviceLostError if no later step can succeed.
        """
        inputs = list(zip(encoded, speakers or [None] * len(tickets), strict=True))
        return answer_requests(tickets, inputs, self._problem_with, self._reply)

    def _problem_with(self, ticket: Ticket, given: tuple[torch.Tensor, SpeakerFrames | None]) -> StreamError | None:
        (encoded, spoken), width = given, self._config.encoder.d_model
        message = None
        if encoded.shape[1:] != (width,):  # a wrong shape would fail the whole batch
            message = f"encoder frames are {list(encoded.shape)}, expected [T, {width}]"
        elif len(encoded) != ticket.rows[:, Column.FRAMES].sum():
            message = f"{len(encoded)} encoder frames are not those of the ticket"
        if message is not None:
            return StreamError(ErrorCode.REQUEST_INVALID, message)
        return None if spoken is None else spoken.problem(len(ticket.rows))

    def _reply(self, good: list[tuple[Ticket, tuple[torch.Tensor, SpeakerFrames | None]]]) -> list[DecodedRows]:
        replies = [DecodedRows(dict(ticket.errors), ticket.is_batched) for ticket, _ in good]
        if good:
            encoded, speakers = zip(*(given for _, given in good), strict=True)
            factor = self._config.encoder.subsampling_factor
            rows, ticket_of, row_of = rows_of_tickets([ticket for ticket, _ in good], encoded, speakers, factor)
            origins = list(zip(ticket_of.tolist(), row_of.tolist(), strict=True))
            for place, answer in self._process(rows).items():
                number, row = origins[place]
                replies[number].answers[row] = answer
        return replies

    def _process(self, rows: DecoderRows) -> dict[int, StreamResult | StreamError]:
        """Returns the results and errors by row, in rounds: the next row of each stream in each.

        Only a row that wants no result may have none. Rows after a failed one of their stream are rejected.
        """
        answers: dict[int, StreamResult | StreamError] = {}
        errors = self._guard.admit(rows.slots, rows.generations, rows.numbers, rows.flags)
        answers.update(errors)
        is_busy = (rows.frames > 0) | (rows.flags > 0) | rows.wants_result
        # Also without encoder frames: they may belong to words that were decoded before.
        is_busy[list(rows.speaker_frames)] = True
        if errors:
            is_busy[list(errors)] = False
        busy = is_busy.nonzero()[0]
        # With generations: the slot's next stream may be in this batch, too.
        failed: set[tuple[int, int]] = set()  # slots and generations
        for own in rounds(rows.slots[busy]):
            places = busy[own]
            if failed:
                why = "an earlier request of this stream failed in the decoder; start the stream again"
                leases = zip(rows.slots[places].tolist(), rows.generations[places].tolist(), strict=True)
                is_behind = np.array([lease in failed for lease in leases], bool)
                answers.update(self._reject(rows, places[is_behind], why))
                places = places[~is_behind]
            for start in range(0, len(places), self._max_step):
                part_answers = self._decode_part(rows, places[start : start + self._max_step])
                failed.update(
                    (int(rows.slots[place]), int(rows.generations[place]))
                    for place, answer in part_answers.items()
                    if isinstance(answer, StreamError)
                )
                answers.update(part_answers)
        # Last: from here on the slots may have new streams. Rejected rows count, else their slots would wait in vain.
        self._guard.settle(rows.slots, rows.generations)
        return answers

    def _reject(self, rows: DecoderRows, places: np.ndarray, why: str) -> dict[int, StreamError]:
        return {
            place: self._guard.reject(int(rows.slots[place]), int(rows.generations[place]), why)
            for place in places.tolist()
        }

    @torch.inference_mode()
    def _decode_part(self, rows: DecoderRows, places: np.ndarray) -> dict[int, StreamResult | StreamError]:
        """The results and errors of admitted rows, all of different streams."""
        is_lost = np.isin(places, rows.not_finite())
        answers: dict[int, StreamResult | StreamError] = dict(self._reject(rows, places[is_lost], _NOT_FINITE))
        places = places[~is_lost]
        try:
            # Before the others are decoded: the first frames of a stream may come with its start.
            if len(starts := places[(rows.flags[places] & START) > 0]):
                answers.update(self._open(rows, starts))
            if answers:
                places = places[~np.isin(places, list(answers))]
            parts = self._decode(rows, places)
        except STEP_ERRORS as error:  # the states of these streams are undefined now
            check_device_works(self._device, error)
            return answers | self._reject(rows, places, f"the decoder failed: {error}")
        for place in places[rows.wants_result[places]].tolist():
            if place not in parts:
                text = self._texts[int(rows.slots[place])]
                answers[place] = text.unchanged(int(rows.covered_samples[place]))
        for place, row_parts in parts.items():
            # On a GPU `not_finite` does not read the frames: check the scores.
            if all(part.is_finite for part in row_parts):
                answers[place] = self._answer(int(rows.slots[place]), row_parts)
            else:
                answers |= self._reject(rows, np.array([place]), _NOT_FINITE)
        if self._speakers.streams:  # after the words, whose segments decide what is final, and before streams close
            self._speakers.place(rows, places, answers)
        self._figures.rewrite(rows.slots, answers)  # last: a number is of one speaker
        # After the answers, which need the texts. The guard admits no further row of these streams.
        for slot in rows.slots[places[(rows.flags[places] & END) > 0]].tolist():
            del self._texts[slot]
            self._speakers.streams.pop(slot, None)
            self._figures.use(slot, "")
            self._changes.pop(slot, None)
            self._fusion.close(slot)
        # After the decoding: new options hold from the segment's end on.
        return answers | self._change(rows, places)

    def _open(self, rows: DecoderRows, places: np.ndarray) -> dict[int, StreamError]:
        """Opens the streams of rows that start; returns the errors of rejected ones."""
        errors: dict[int, StreamError] = {}
        opened = []
        for place in places.tolist():
            slot, options = int(rows.slots[place]), rows.options.get(place, self._default)
            try:
                self._speakers.open(slot, options, place in rows.speaker_frames)
                self._fusion.open(slot, options)  # last: a rejected stream holds no phrases
            except StreamError as error:
                self._guard.reject(slot, int(rows.generations[place]), error.message, error.code)
                errors[place] = error
                continue
            # Those of the slot's last stream, whose END may never have come.
            self._changes.pop(slot, None)
            self._decoder_numbers[slot] = self.decoders.index(options.decoder)
            self._texts[slot] = StreamText(
                self._tokenizer,
                self._config,
                options.keeps_tags,
                has_alternatives=options.n_best > 0,
                has_end_tokens=not options.ends_at_tokens,
            )
            self._has_unstable[slot] = False
            self._endpoints.open(slot, options.endpoint, self._chunk_frames(options))
            self._use(slot, options)
            opened.append(slot)
        # All of them at once: one copy to the device and one reset, not one for each stream.
        self._set_prompts(opened)
        self._begin(opened)
        return errors

    def _use(self, slot: int, options: ResolvedOptions) -> None:
        # The phrase cache has the phrases, once for all streams.
        self._options[slot] = options.model_copy(update={"phrases": ()})
        self._figures.use(slot, options.figures)
        # Greedy CTC has no state but an open token, which must not be reported twice.
        self._carries_state[slot] = options.carries_state or options.decoder == CTC

    def _change(self, rows: DecoderRows, places: np.ndarray) -> dict[int, StreamError]:
        """Running streams go on with the options that came with the ends of their segments; returns errors by row."""
        for place in places.tolist() if rows.options else ():
            if place in rows.options and not rows.flags[place] & START:
                # Held until their segment ends: with an offline model, that is with the frames of a later row.
                self._changes.setdefault(int(rows.slots[place]), deque()).append(rows.options[place])
        errors: dict[int, StreamError] = {}
        for place in places[(rows.flags[places] & FINALIZE) > 0].tolist() if self._changes else ():
            slot = int(rows.slots[place])
            if not (waiting := self._changes.get(slot)):
                continue
            options = waiting.popleft()
            try:
                # Before anything else changes: the stream ends where there is no memory for its phrases.
                if not options.keeps_phrases:
                    restart = self._stream_decoders[options.decoder].restart_phrases
                    self._fusion.change(slot, options, restart)
            except StreamError as error:
                self._guard.reject(slot, int(rows.generations[place]), error.message, error.code)
                errors[place] = error
                continue
            self._use(slot, options)
            self._texts[slot].change(has_end_tokens=not options.ends_at_tokens)
            self._endpoints.change(slot, options.endpoint)
            self._set_prompts([slot])
        return errors

    def _chunk_frames(self, options: ResolvedOptions) -> int | None:
        """Encoder frames after which endpoints of a live stream of an offline model are evaluated; None for others."""
        window = live_window(options.window, self._config)
        return None if window is None else window.step_frames(self._config.encoder_frame_ms)

    def _set_prompts(self, slots: list[int]) -> None:
        if self._prompts is not None and slots:
            prompts = copy_to_device([self._options[slot].prompt for slot in slots], torch.int64, self._device)
            self._prompts.index_copy_(0, copy_to_device(slots, torch.int64, self._device), prompts)

    def _prompts_of(self, slots: list[int]) -> torch.Tensor | None:
        if self._prompts is None:
            return None
        return self._prompts.index_select(0, copy_to_device(slots, torch.int64, self._device))

    def _begin(self, slots: list[int], goes_on: bool = False) -> None:
        """Starts new streams or segments in `slots`, each in its stream decoder.

        goes_on: with the best hypotheses of the segments before.
        """
        by_decoder: dict[str, list[int]] = {}
        for slot in slots:
            by_decoder.setdefault(self._options[slot].decoder, []).append(slot)
        for name, group in by_decoder.items():
            decoder = self._stream_decoders[name]
            begin = decoder.begin_segment if goes_on else decoder.open
            begin(group, [self._options[slot] for slot in group])

    def _answer(self, slot: int, parts: list[SegmentPart]) -> StreamResult:
        text = self._texts[slot]
        *earlier, last = [
            text.update(part.decoded, part.covered_samples, part.is_final, part.next_start_samples) for part in parts
        ]
        self._has_unstable[slot] = bool(text.unstable)
        return replace(last, earlier=tuple(earlier)) if earlier else last

    def _decode(self, rows: DecoderRows, places: np.ndarray) -> dict[int, list[SegmentPart]]:
        """Decodes rows of different streams, step by step; returns the parts of segments in those with new results."""
        slots, flags, covered = rows.slots[places], rows.flags[places], rows.covered_samples[places]
        ends, is_forced = (flags & END) > 0, (flags & FINALIZE) > 0
        if self._config.encoder.is_offline:  # its windows begin anew where a client ends a segment
            ends, is_forced = ends | is_forced, ends & is_forced
        changing = self._has_unstable[slots].nonzero()[0].tolist()
        unstable = {row: self._texts[int(slots[row])].unstable for row in changing}
        frames = np.array([rows.frames[places], rows.open_frames[places]])
        steps = RowSteps(self._endpoints, slots, frames, covered, ends, is_forced, unstable)
        first_frames = (rows.frames.cumsum() - rows.frames)[places]
        while step := steps.next():
            own = slots[step.rows]
            steps.add(step, self._decode_step(own, step, first_frames[step.rows] + step.first_frames, rows.encoded))
            # Before the next step, whose frames belong to the new segment.
            if len(ended := own[step.is_endpoint]):
                carries = self._carries_state[ended]
                self._begin(ended[~carries].tolist())
                self._begin(ended[carries].tolist(), goes_on=True)
        parts_of = {
            row: self._without_warm_up(int(slots[row]), parts, ends[row] or is_forced[row])
            for row, parts in steps.parts().items()
        }
        # A poll of a file reports the share of the work, in all its parts.
        for row in ((flags & (POLL | END | LIVE)) == POLL).nonzero()[0].tolist():
            if row in parts_of:
                parts_of[row] = [part._replace(covered_samples=int(covered[row])) for part in parts_of[row]]
        if self._config.encoder.is_offline and len(finalized := ((flags & FINALIZE) > 0).nonzero()[0]):
            # After the warm-up was taken off the parts: this forgets where it ends.
            self._endpoints.restart(slots[finalized], covered[finalized])
            self._begin(slots[finalized].tolist())
        return {int(places[row]): parts for row, parts in parts_of.items() if parts}

    def _without_warm_up(self, slot: int, parts: list[SegmentPart], ends: bool) -> list[SegmentPart]:
        """The parts whose results a client receives. The row's own end of a segment has a result in any case."""
        last_samples = self._endpoints.warm_up_samples(slot)
        withheld = [part for part in parts if part.covered_samples <= last_samples]
        if not withheld:
            return parts
        self._texts[slot].skip(withheld[-1].next_start_samples)
        own_end = [parts[-1]._replace(decoded=NOTHING)] if ends and withheld[-1] is parts[-1] else []
        return parts[len(withheld) :] + own_end

    def _decode_step(
        self, slots: np.ndarray, step: Step, first_frames: np.ndarray, encoded: torch.Tensor
    ) -> list[Decoded | None]:
        """Decodes a step of different streams, from `first_frames` [n] of `encoded` [T, D] on; None where a stream
        decoder needs frames and there are none.
        """
        decoded: list[Decoded | None] = [None] * len(slots)
        numbers = self._decoder_numbers[slots]
        for number in sorted(set(numbers.tolist())):
            decoder = self._decoders[number]
            is_run = numbers == number
            if decoder.needs_frames:
                is_run &= step.frames > 0
            runs = is_run.nonzero()[0]
            if not len(runs):
                continue
            own, lengths = slots[runs].tolist(), step.frames[runs]
            chunk = Chunk(
                slots=own,
                encoded=send_to_device(padded(encoded, first_frames[runs], lengths), self._device),
                lengths=send_to_device(torch.from_numpy(lengths), self._device),
                is_final=step.is_final[runs].tolist(),
                prompts=self._prompts_of(own),
                copies=step.is_copy[runs].nonzero()[0].tolist(),
            )
            for i, row_decoded in zip(runs.tolist(), decoder.decode(chunk), strict=True):
                decoded[i] = row_decoded
        return decoded
