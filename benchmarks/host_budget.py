"""Measures the host's work per row of a batched request: everything but front end, encoder and search.

    python -m benchmarks.host_budget [--rows 64 512 1024] [--context 70,0] [--rounds 30] [--threads 1]

Rows pass the three stages as they do in the server, without Triton: arrays to rows, tickets, slots, chunks, results and
metrics. The network's parts are replaced by ones that return zeros at once: the log-mel transform, the encoder's step,
and a greedy search that finds nothing. A row brings one whole chunk of a stream, or audio that completes none.
"""

import argparse
import statistics
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks.results import ROOT
from penstock.encoder.encoder import Encoded, StreamingEncoder
from penstock.frontend.log_mel import LogMel
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, parse_context
from penstock.pipeline.results.words import NOTHING, Decoded
from penstock.pipeline.slots.ledger import LatencyTable, SlotLedger
from penstock.pipeline.slots.table import StreamTable
from penstock.pipeline.slots.ticket import START, Ticket, TicketSigner
from penstock.pipeline.stages.audio_rows import read_rows
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.pipeline.stages.decoder_rows import ResultChanges
from penstock.pipeline.stages.encoder import EncoderStage
from penstock.pipeline.stages.features import FeatureStage
from penstock.pipeline.stream_decoders.base import Chunk
from penstock.pipeline.stream_decoders.searches import GreedyStreamDecoder
from penstock.reporting import markdown_table
from penstock.runtime import prepare_process
from penstock.serving.metrics import ChunkMetrics, decoded_frames

BUNDLE = ROOT / "models" / "an4-rnnt-hybrid"
STAGES = ("read", "features", "encoder", "decoder")
QUIET_SAMPLES = 160


class Pipeline:
    """The three stages with streams 1 .. rows open."""

    def __init__(self, model: Path, context: AttentionContext, rows: int):
        checkpoint = Checkpoint(model)
        table = StreamTable(rows, SlotLedger(rows + max(2, rows // 8)))
        ledger = table._ledger
        self._signer = TicketSigner(b"benchmark")
        self._features = FeatureStage(checkpoint, context, table)
        self._encoder = EncoderStage(checkpoint, context, table.slots, ledger)
        self._decoder = DecoderStage(checkpoint, table.slots, ledger, context=context)
        self._changes = ResultChanges(table.slots)
        latency = LatencyTable(table.slots)
        self._metrics = ChunkMetrics(lambda *_: mock.Mock(), context.chunk_encoder_frames, 80, latency)
        self.chunk_samples = self._features._extractor.geometry.chunk_samples
        self.run(rows, self.chunk_samples, START)

    def run(self, rows: int, samples: int, flags: int = 0) -> dict[str, float]:
        """One request with a row of each stream; returns the seconds of each stage."""
        table = np.stack(np.broadcast_arrays(np.arange(1, rows + 1), samples, flags, -1), axis=1)[None]
        audio = np.zeros(rows * samples, np.float32)
        times = [time.thread_time()]
        request = read_rows("benchmark", table, audio, [], len(audio))
        times.append(time.thread_time())
        (reply,) = self._features.process_rows([request])
        ticket = Ticket(reply.rows, 0, True, reply.options, reply.errors)
        packed = self._signer.pack(ticket)
        times.append(time.thread_time())
        (encoded,) = self._encoder.process_tickets([self._signer.unpack(packed)], [reply.mel])
        times.append(time.thread_time())
        ticket = self._signer.unpack(packed, reads_rest=True)
        (decoded,) = self._decoder.process_tickets([ticket], [encoded.encoded])
        self._metrics.update(decoded_frames([ticket], [decoded]))
        self._changes.of_rows(ticket.rows, decoded.answers)
        times.append(time.thread_time())
        assert not reply.errors and not encoded.errors and not decoded.errors
        return dict(zip(STAGES, np.diff(times).tolist(), strict=True))


def _no_mel(log_mel: LogMel, windows: torch.Tensor, filled: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out.zero_()


def _no_encoding(encoder: StreamingEncoder, slots: torch.Tensor, mel: torch.Tensor, valid: torch.Tensor) -> Encoded:
    frames = torch.zeros(len(slots), encoder.context.chunk_encoder_frames, encoder.config.d_model)
    return Encoded(frames, valid)


def _no_search(decoder: GreedyStreamDecoder, chunk: Chunk) -> list[Decoded]:
    return [NOTHING] * len(chunk.slots)


def measure(model: Path, context: AttentionContext, rows: int, rounds: int) -> list[list[object]]:
    """Microseconds per row of each stage, medians: for rows with a chunk, and for rows without."""
    with (
        mock.patch.object(LogMel, "__call__", _no_mel),
        mock.patch.object(StreamingEncoder, "step", _no_encoding),
        mock.patch.object(GreedyStreamDecoder, "decode", _no_search),
    ):
        pipeline = Pipeline(model, context, rows)
        lines: list[list[object]] = []
        for name, samples in (("one chunk", pipeline.chunk_samples), ("no chunk", QUIET_SAMPLES)):
            limit = max(1, (pipeline.chunk_samples - 1) // QUIET_SAMPLES - 1) if name == "no chunk" else rounds
            found = [pipeline.run(rows, samples) for _ in range(min(rounds, limit))]
            medians = [1e6 * statistics.median(one[stage] for one in found) / rows for stage in STAGES]
            lines.append([rows, name, *(f"{median:.1f}" for median in medians), f"{sum(medians):.1f}"])
    return lines


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=BUNDLE)
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512, 1024])
    parser.add_argument("--context", type=parse_context, default=AttentionContext(70, 0))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prepare_process(options.threads)
    lines = [line for rows in options.rows for line in measure(options.model, options.context, rows, options.rounds)]
    print("Microseconds per row (median)\n")
    print(markdown_table(["rows", "each brings", *STAGES, "sum"], lines))


if __name__ == "__main__":
    main()
