"""Times one streaming step of this project's encoder and of NeMo's, with the same weights. Needs NeMo (`oracle`).

    python -m benchmarks.encoder [--quick] [--threads 1] [--contexts 70,6 ...] [--batches 1 8 32] [--json FILE]

A random model of the size of NeMo's large streaming models (17 layers, width 512, 8 heads, convolution kernel 9, 256
subsampling channels, 80 mel bins) is saved as .nemo, imported as a bundle, and both run it in the steady state, all
caches full: `StreamingEncoder.step`, and NeMo's `cache_aware_stream_step` with its own caches, chunk and pre-encode
cache sizes. The two alternate on the same input, and the ratio is the median over the pairs. Equality is checked:
Penstock equals NeMo offline to 1e-4 from a stream's start on, NeMo's steps equal Penstock's to 1e-3 at every pair. For
that, NeMo's [70,0] streams begin with two chunks at once: its own pipeline would give their second chunk zeros in place
of frames before the start, and be wrong for the next 70 frames. NeMo runs with this process's allocator settings, which
speed it up too.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from nemo.collections.asr.modules import ConformerEncoder

from benchmarks.nemo_models import build_model
from benchmarks.nemo_specs import ModelSpec
from benchmarks.random_models import ENCODERS, FEATURES
from benchmarks.results import describe, environment, progress, publish
from benchmarks.signals import make_signals
from penstock.encoder.encoder import StreamingEncoder
from penstock.model.bundle import Checkpoint
from penstock.model.config import AttentionContext, parse_context
from penstock.model.nemo.importer import import_nemo
from penstock.reporting import markdown_table
from penstock.runtime import prepare_process

CONTEXTS = ("70,0", "70,1", "70,6", "70,13")
BATCHES = (1, 8, 32)
LARGE = ModelSpec(
    "large", seed=0, hybrid=False, d_model=512, n_heads=8, n_layers=17, ff_expansion=4, channels=256,
    contexts=[[70, 13], [70, 6], [70, 1], [70, 0]], predictor_hidden=640, joint_hidden=640,
)  # fmt: skip
OFFLINE_TOLERANCE, STEP_TOLERANCE = 1e-4, 1e-3
WARM_UP_PAIRS, MIN_PAIRS, MAX_PAIRS = 2, 5, 200


class Penstock:
    """`batch` streams of this project's encoder."""

    def __init__(self, checkpoint: Checkpoint, context: AttentionContext, batch: int):
        self._encoder = StreamingEncoder(checkpoint, context, slots=batch)
        self._slots = torch.arange(batch)
        self._encoder.open(self._slots)

    def step(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: [B, N, F] -> [B, T, D]."""
        whole = torch.full((len(mel),), mel.shape[1])
        return self._encoder.step(self._slots[: len(mel)], mel, whole).frames


class Nemo:
    """Streams of NeMo's encoder, with the caches that its own steps return."""

    def __init__(self, model, context: AttentionContext):
        self._encoder = model.encoder
        self._encoder.set_default_att_context_size(list(context))
        self._encoder.setup_streaming_params()
        self.pre_encode_mel_frames = self._encoder.streaming_cfg.pre_encode_cache_size[1]
        self._caches = self._encoder.get_initial_cache_state(batch_size=1)

    @torch.inference_mode()
    def offline(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: [1, N, F] -> [1, T, D]."""
        encoded, _ = self._encoder(audio_signal=mel.transpose(1, 2), length=torch.tensor([mel.shape[1]]))
        return encoded.transpose(1, 2)

    @torch.inference_mode()
    def begin(self, mel: torch.Tensor, batch: int) -> torch.Tensor:
        """Streams the history [1, N, F], then copies the state for `batch` streams. Returns its output [1, T, D]."""
        first, whole = self._encoder.streaming_cfg.chunk_size
        if first < self.pre_encode_mel_frames:
            first += whole
        mel, outputs = mel.transpose(1, 2), []
        for begin in [0, *range(first, mel.shape[2], whole)]:
            window = mel[:, :, :first] if begin == 0 else mel[:, :, begin - self.pre_encode_mel_frames : begin + whole]
            outputs.append(self._step(window, drop=0 if begin == 0 else None))
        channel, conv, length = self._caches
        self._caches = (channel.repeat(1, batch, 1, 1), conv.repeat(1, batch, 1, 1), length.repeat(batch))
        return torch.cat(outputs, dim=2).transpose(1, 2)

    @torch.inference_mode()
    def step(self, window: torch.Tensor) -> torch.Tensor:
        """window: [B, F, pre-encode cache + N], as NeMo's pipeline makes it -> [B, D, T]."""
        return self._step(window, drop=None)

    def _step(self, window: torch.Tensor, drop: int | None) -> torch.Tensor:
        channel, conv, filled = self._caches
        length = torch.full((len(window),), window.shape[2])
        encoded, _, *caches = self._encoder.cache_aware_stream_step(
            processed_signal=window, processed_signal_length=length, cache_last_channel=channel, cache_last_time=conv,
            cache_last_channel_len=filled, keep_all_outputs=drop == 0, drop_extra_pre_encoded=drop,
        )  # fmt: skip
        self._caches = tuple(caches)
        return encoded


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    prepare_process(arguments.threads)
    here = environment(arguments.threads)
    signals = {name: samples.astype("float32") / 32768 for name, samples in make_signals().items()}
    with tempfile.TemporaryDirectory() as workspace:
        progress("building and importing the model")
        model = build_model(LARGE, Path(workspace), signals)
        model.save_to(f"{workspace}/large.nemo")
        checkpoint = import_nemo(f"{workspace}/large.nemo", f"{workspace}/large")
        tape = make_tape(model, signals["long"])
        results = [
            run_case(model, checkpoint, tape, parse_context(context), batch, arguments.seconds)
            for context in arguments.contexts
            for batch in arguments.batches
        ]
    publish(to_markdown(here, results), {"environment": here, "results": results}, arguments.json)


def parse_arguments() -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--contexts", nargs="+", default=CONTEXTS, metavar="L,R", help="attention contexts")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, metavar="B", help="batch sizes")
    parser.add_argument("--seconds", type=float, default=15.0, help="time per case, at least 5 pairs (15)")
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds = 0.0
    return arguments


def make_tape(model, samples) -> torch.Tensor:
    """Log-mel [N, F] from which history and chunks are cut."""
    with torch.inference_mode():
        mel, _ = model.preprocessor(input_signal=torch.from_numpy(samples)[None], length=torch.tensor([len(samples)]))
    return mel[0].T.repeat(6, 1)


def run_case(
    model, checkpoint: Checkpoint, tape: torch.Tensor, context: AttentionContext, batch: int, seconds: float
) -> dict:
    """One line of the result."""
    progress(f"context {context}, batch {batch}")
    penstock, nemo = Penstock(checkpoint, context, batch), Nemo(model, context)
    history = fill_caches(penstock, nemo, checkpoint.config.encoder.subsampling_factor, tape, context, batch)
    difference, pairs = 0.0, []
    started = time.perf_counter()
    for number, (chunk, window) in enumerate(steady_chunks(history, tape, nemo.pre_encode_mel_frames, context, batch)):
        nemo_s, theirs = timed(nemo.step, window)
        penstock_s, mine = timed(penstock.step, chunk)
        difference = max(difference, (theirs.transpose(1, 2) - mine).abs().max().item())
        require(difference < STEP_TOLERANCE, f"{context}: the steps differ by {difference}")
        if number >= WARM_UP_PAIRS:
            pairs.append((nemo_s, penstock_s))
        enough = len(pairs) >= MIN_PAIRS and time.perf_counter() - started > seconds
        if enough or len(pairs) >= MAX_PAIRS:
            break
    return summarize(
        context, checkpoint.config.encoder_frame_ms * context.chunk_encoder_frames, batch, pairs, difference
    )


def fill_caches(
    penstock: Penstock, nemo: Nemo, factor: int, tape: torch.Tensor, context: AttentionContext, batch: int
) -> torch.Tensor:
    """Runs both over one history until the left context is full; returns it, [1, N, F]. Checks their outputs."""
    whole, virtual = factor * context.chunk_encoder_frames, factor - 1
    chunks = context.left // context.chunk_encoder_frames + 2
    mel = tape[: chunks * whole - virtual].unsqueeze(0)
    padded = torch.nn.functional.pad(mel, (0, 0, virtual, 0))
    mine = torch.cat([penstock.step(chunk.repeat(batch, 1, 1))[:1] for chunk in padded.split(whole, dim=1)], dim=1)
    offline = (mine - nemo.offline(mel)).abs().max().item()
    require(offline < OFFLINE_TOLERANCE, f"{context}: Penstock differs from NeMo offline by {offline}")
    streaming = (mine - nemo.begin(mel, batch)).abs().max().item()
    require(streaming < STEP_TOLERANCE, f"{context}: NeMo's streaming differs from Penstock's by {streaming}")
    progress(f"  largest difference to NeMo: offline {offline:.1e}, streaming {streaming:.1e}")
    return mel


def steady_chunks(
    history: torch.Tensor, tape: torch.Tensor, pre_encode_mel_frames: int, context: AttentionContext, batch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Chunks [B, N, F], a different one per stream, and the same with NeMo's pre-encode cache, [B, F, cache + N]."""
    generator = torch.Generator().manual_seed(0)
    length = 8 * context.chunk_encoder_frames
    received = history.repeat(batch, 1, 1)
    while True:
        begins = torch.randint(len(tape) - length, (batch,), generator=generator).tolist()
        chunk = torch.stack([tape[begin : begin + length] for begin in begins])
        received = torch.cat([received[:, -pre_encode_mel_frames:], chunk], dim=1)
        yield chunk, received.transpose(1, 2).contiguous()


def nemo_encoder_steps(
    size: str, context: AttentionContext, streams: int, dtype: torch.dtype, device: str
) -> Callable[[int], Callable[[], object]]:
    """Returns what makes a step of the first n streams, `cache_aware_stream_step` with full caches.

    size: a key of `ENCODERS`. dtype: of weights, activations and caches, as NeMo's pipeline has them without autocast.
    """
    sizes = ENCODERS[size]
    encoder = ConformerEncoder(
        feat_in=FEATURES.mel_bins, n_layers=sizes.layers, d_model=sizes.width, n_heads=sizes.heads,
        subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=sizes.subsampling_channels,
        causal_downsampling=True, att_context_style="chunked_limited", att_context_size=list(context),
        conv_kernel_size=9, conv_context_size="causal", conv_norm_type="batch_norm", xscaling=False,
        dropout=0.0, dropout_pre_encoder=0.0, dropout_emb=0.0, dropout_att=0.0,
    )  # fmt: skip
    encoder = encoder.to(device, dtype).eval()
    encoder.setup_streaming_params()
    config = encoder.streaming_cfg
    frames = config.chunk_size[1] + config.pre_encode_cache_size[1]  # those of any chunk but the first
    mel = torch.randn(streams, FEATURES.mel_bins, frames, device=device, dtype=dtype)
    lengths = torch.full((streams,), frames, device=device)
    keys, tails, ages = encoder.get_initial_cache_state(batch_size=streams, dtype=dtype, device=device)
    keys.normal_()
    tails.normal_()
    ages.fill_(context.left)

    @torch.inference_mode()
    def step(rows: int) -> object:
        return encoder.cache_aware_stream_step(
            processed_signal=mel[:rows], processed_signal_length=lengths[:rows],
            cache_last_channel=keys[:, :rows], cache_last_time=tails[:, :rows], cache_last_channel_len=ages[:rows],
            keep_all_outputs=False,
        )  # fmt: skip

    return lambda rows: lambda: step(rows)


def timed(step, mel: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Seconds, result."""
    started = time.perf_counter()
    result = step(mel)
    return time.perf_counter() - started, result


def require(condition: bool, failure: str) -> None:
    """Ends the program: unequal results must not be compared."""
    if not condition:
        raise SystemExit(failure)


def summarize(
    context: AttentionContext, chunk_ms: float, batch: int, pairs: list[tuple[float, float]], difference: float
) -> dict:
    """Medians of one case."""
    ratios = sorted(nemo_s / penstock_s for nemo_s, penstock_s in pairs)
    result = {
        "context": list(context),
        "chunk_ms": chunk_ms,
        "batch": batch,
        "nemo_ms": 1e3 * statistics.median(nemo_s for nemo_s, _ in pairs),
        "penstock_ms": 1e3 * statistics.median(penstock_s for _, penstock_s in pairs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "ratio_from_sizes": ratio_from_sizes(context),
        "pairs": len(pairs),
        "max_difference": difference,
    }
    progress(f"  NeMo {result['nemo_ms']:.1f} ms, Penstock {result['penstock_ms']:.1f} ms, ratio {result['ratio']:.2f}")
    return result


def ratio_from_sizes(context: AttentionContext) -> float:
    """Multiply-accumulates in the layers' weights, NeMo's to Penstock's.

    In units of D^2 a frame costs 16 in the feed-forward blocks, 4 in attention and 3 in the convolution block; NeMo
    projects keys and values (2 of the 4) anew for all frames in its cache.
    """
    frames = context.chunk_encoder_frames
    return (21 * frames + 2 * (context.left + frames)) / (23 * frames)


def to_markdown(here: dict, results: list[dict]) -> str:
    """The table."""
    header = ["context", "chunk", "batch", "NeMo ms", "Penstock ms", "ratio", "quartiles", "from sizes", "pairs"]
    rows = [
        [
            f"[{r['context'][0]},{r['context'][1]}]", f"{r['chunk_ms']:.0f} ms", r["batch"], r["nemo_ms"],
            r["penstock_ms"], r["ratio"], "{:.2f} .. {:.2f}".format(*r["ratio_quartiles"]),
            r["ratio_from_sizes"], r["pairs"],
        ]
        for r in results
    ]  # fmt: skip
    return f"{markdown_table(header, rows)}\n\n{describe(here)}"


if __name__ == "__main__":
    main()
