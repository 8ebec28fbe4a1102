"""Times one streaming step of this project's encoder and of NeMo's, of equal sizes. Needs NeMo (`oracle`).

    python -m benchmarks.encoder [--quick] [--threads 1] [--contexts 70,6 ...] [--batches 1 8 32] [--json FILE]

Both have the size of NeMo's large streaming models (17 layers, width 512, 8 heads, convolution kernel 9, 256
subsampling channels, 80 mel bins), random weights and full caches: `StreamingEncoder.step`, and NeMo's
`cache_aware_stream_step` with its own caches, chunk and pre-encode cache sizes. They run in interleaved rounds, and the
ratio is the median over the rounds. tests/oracle/test_encoder.py shows that with equal weights both compute the same.
NeMo runs with this process's allocator settings, which speed it up too.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.measure import ratios_to, time_interleaved
from benchmarks.random_models import ENCODERS, FEATURES, RandomEncoder
from benchmarks.results import describe, environment, progress, publish
from penstock.encoder.encoder import TORCH, StreamingEncoder
from penstock.model.config import AttentionContext, parse_context
from penstock.reporting import markdown_table
from penstock.runtime import prepare_process

CONTEXTS = ("70,0", "70,1", "70,6", "70,13")
BATCHES = (1, 8, 32)
_FACTOR, _ENCODER_FRAME_MS, _WARM_UP_ROUNDS = 8, 80, 2

StepOf = Callable[[int], Callable[[], object]]
"""Returns what makes a step of the first n streams."""


def encoder_steps(
    size: str, context: AttentionContext, streams: int, dtype: torch.dtype, device: str, engine: str = TORCH
) -> StepOf:
    """`StreamingEncoder.step` with full caches. size: a key of `ENCODERS`; engine: kernels."""
    source = RandomEncoder(ENCODERS[size], context, device=device)
    encoder = StreamingEncoder(source, context, streams, device, dtype, engine)
    encoder.state.kv_pages.normal_()
    encoder.state.conv_tails.normal_()
    encoder.state.chunks_seen.fill_(10 * encoder.state.pages_per_slot)
    frames = _FACTOR * context.chunk_encoder_frames
    slots, mel = torch.arange(streams, device=device), source.mel(1, streams, frames)[0]
    valid = torch.full((streams,), frames, device=device)
    return lambda rows: lambda: encoder.step(slots[:rows], mel[:rows], valid[:rows])


def nemo_encoder_steps(size: str, context: AttentionContext, streams: int, dtype: torch.dtype, device: str) -> StepOf:
    """`cache_aware_stream_step` with full caches.

    size: a key of `ENCODERS`. dtype: of weights, activations and caches, as NeMo's pipeline has them without autocast.
    """
    from nemo.collections.asr.modules import ConformerEncoder

    sizes = ENCODERS[size]
    encoder = ConformerEncoder(
        feat_in=FEATURES.mel_bins, n_layers=sizes.layers, d_model=sizes.width, n_heads=sizes.heads,
        subsampling="dw_striding", subsampling_factor=_FACTOR, subsampling_conv_channels=sizes.subsampling_channels,
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


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (1)")
    parser.add_argument("--contexts", nargs="+", default=CONTEXTS, metavar="L,R", help="attention contexts")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, metavar="B", help="batch sizes")
    parser.add_argument("--size", choices=ENCODERS, default="large", help="sizes of both (large)")
    parser.add_argument("--rounds", type=int, default=30, help="counted rounds (30)")
    parser.add_argument("--quick", action="store_true", help="5 rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to this file")
    arguments = parser.parse_args(argv)
    prepare_process(arguments.threads)
    here, rounds = environment(arguments.threads), 5 if arguments.quick else arguments.rounds
    results = []
    for context in map(parse_context, arguments.contexts):
        made = (arguments.size, context, max(arguments.batches), torch.float32, "cpu")
        steps = {"NeMo": nemo_encoder_steps(*made), "Penstock": encoder_steps(*made)}
        for batch in arguments.batches:
            progress(f"context {context}, batch {batch}")
            tasks = {name: step_of(batch) for name, step_of in steps.items()}
            taken = time_interleaved(tasks, rounds, _WARM_UP_ROUNDS, "cpu")
            results.append(summarize(context, batch, taken))
    publish(to_markdown(here, results), {"environment": here, "results": results}, arguments.json)


def summarize(context: AttentionContext, batch: int, taken: dict[str, list[float]]) -> dict:
    """Medians of one case. taken: seconds of each round by name."""
    ratios = sorted(ratios_to("Penstock", {"": taken})[""]["NeMo"])
    return {
        "context": list(context),
        "chunk_ms": _ENCODER_FRAME_MS * context.chunk_encoder_frames,
        "batch": batch,
        **{f"{name.lower()}_ms": 1e3 * statistics.median(seconds) for name, seconds in taken.items()},
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "ratio_from_sizes": ratio_from_sizes(context),
        "rounds": len(ratios),
    }


def ratio_from_sizes(context: AttentionContext) -> float:
    """Multiply-accumulates in the layers' weights, NeMo's to Penstock's.

    In units of D^2 a frame costs 16 in the feed-forward blocks, 4 in attention and 3 in the convolution block; NeMo
    projects keys and values (2 of the 4) anew for all frames in its cache.
    """
    frames = context.chunk_encoder_frames
    return (21 * frames + 2 * (context.left + frames)) / (23 * frames)


def to_markdown(here: dict, results: list[dict]) -> str:
    """The table."""
    header = ["context", "chunk", "batch", "NeMo ms", "Penstock ms", "ratio", "quartiles", "from sizes", "rounds"]
    rows = [
        [
            f"[{r['context'][0]},{r['context'][1]}]", f"{r['chunk_ms']:.0f} ms", r["batch"], r["nemo_ms"],
            r["penstock_ms"], r["ratio"], "{:.2f} .. {:.2f}".format(*r["ratio_quartiles"]),
            r["ratio_from_sizes"], r["rounds"],
        ]
        for r in results
    ]  # fmt: skip
    return f"{markdown_table(header, rows)}\n\n{describe(here)}"


if __name__ == "__main__":
    main()
