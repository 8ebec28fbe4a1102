"""NeMo's streaming encoder with random weights, for `benchmarks.gpu encoder`. Needs NeMo."""

import logging
from collections.abc import Callable

import torch
from nemo.collections.asr.modules import ConformerEncoder
from nemo.utils import logging as nemo_logging

from benchmarks.random_models import ENCODERS, FEATURES
from penstock.model.config import AttentionContext

_KERNEL = 9
nemo_logging.setLevel(logging.ERROR)


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
        conv_kernel_size=_KERNEL, conv_context_size="causal", conv_norm_type="batch_norm", xscaling=False,
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
