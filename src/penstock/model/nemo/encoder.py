"""Reads the section `encoder` of model_config.yaml: what is accepted of NeMo's ConformerEncoder."""

from penstock.model.config import AttentionContext, EncoderConfig, LiveMenu
from penstock.model.limits import MAX_CONTEXT, MAX_LAYERS
from penstock.model.section import Section

MIXED = (
    "causal parts of streaming models (att_context_style 'chunked_limited') and centered parts of offline models "
    "('regular') cannot be mixed"
)
"""Why a value of the other kind of model is rejected."""
_UNLIMITED = [-1, -1]
_LOCAL = "rel_pos_local_attn"
_UNIFIED = "chunked_limited_with_rc"


def read_encoder(section: Section) -> EncoderConfig:
    """The encoder of a model, streaming or offline. Raises CheckpointError."""
    section.class_of("_target_", ("ConformerEncoder", "ConformerEncoderAdapter"))  # the latter may have adapters
    d_model = section.integer("d_model")
    _reject_other_architectures(section, d_model)
    style = section.only("att_context_style", "regular", ("chunked_limited", "regular", _UNIFIED))
    is_offline = style != "chunked_limited"
    section.only("causal_downsampling", False, (not is_offline,), MIXED)
    section.only("self_attention_model", "rel_pos", ("rel_pos", *([_LOCAL] if style == "regular" else [])))
    if style != _UNIFIED:  # attention by chunks; convolutions by chunks are in training only
        section.only("att_chunk_context_size", None, (None,))
    section.only("conv_context_style", "regular", ("regular", "dcc") if style == _UNIFIED else ("regular",))
    kernel_size = section.integer("conv_kernel_size", 31)
    _convolution_context(section, kernel_size, is_offline)
    conv_norm_type = section.only("conv_norm_type", "batch_norm", ("layer_norm", "batch_norm"))
    channels = section.get("subsampling_conv_channels", -1)
    encoder = EncoderConfig(
        mel_bins=section.integer("feat_in"),
        n_layers=section.integer("n_layers", maximum=MAX_LAYERS),
        d_model=d_model,
        n_heads=section.integer("n_heads", 4),
        d_feed_forward=d_model * section.integer("ff_expansion_factor", 4),
        conv_kernel_size=kernel_size,
        has_conv_layer_norm=conv_norm_type == "layer_norm",
        use_bias=section.flag("use_bias", True),
        xscaling=section.flag("xscaling", True),
        subsampling_factor=section.integer("subsampling_factor", 4),
        subsampling_channels=d_model if channels == -1 else section.integer("subsampling_conv_channels"),
        contexts=() if is_offline else _contexts(section),
        attention_band=_band(section) if style == "regular" else None,
        live_menu=_live_menu(section) if style == _UNIFIED else None,
    )
    section.reject_unknown()
    return encoder


def _convolution_context(section: Section, kernel_size: int, is_offline: bool) -> None:
    """Checks that the convolutions are centered in an offline model and causal in others."""
    value, side = section.get("conv_context_size"), (kernel_size - 1) // 2
    accepted: tuple[object, ...] = ("causal", [kernel_size - 1, 0])
    if is_offline:
        if kernel_size % 2 == 0:
            section.reject("conv_kernel_size", kernel_size, "an odd number, for centered convolutions")
        accepted = (None, [side, side])
    if value not in accepted:
        section.reject("conv_context_size", value, str([side, side]) if is_offline else "'causal'", MIXED)


def _reject_other_architectures(section: Section, d_model: int) -> None:
    section.only("subsampling", "striding", ("dw_striding",))
    section.only("conv_dual_mode", False, (False, None))
    if section.get("reduction") and section.get("reduction_factor", 1) != 1:
        section.reject("reduction", section.get("reduction"), "nothing")
    section.ignore("reduction_position", "reduction_factor")
    if section.get("feat_out", -1) not in (-1, 0, None, d_model):
        section.reject("feat_out", section.get("feat_out"), f"-1 or d_model ({d_model})")
    section.ignore("untie_biases")  # tied ones are stored with every layer
    section.ignore("pos_emb_max_len", "att_context_probs", "subsampling_conv_chunking_factor", "sync_max_audio_length")
    section.only("global_tokens", 0, (0, None), "tokens with global attention are not supported")
    section.ignore("global_tokens_spacing", "global_attn_separate")
    section.ignore("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att")
    section.ignore("stochastic_depth_drop_prob", "stochastic_depth_mode", "stochastic_depth_start_layer")
    section.ignore("use_pytorch_sdpa", "use_pytorch_sdpa_backends")


def _contexts(section: Section) -> tuple[AttentionContext, ...]:
    value = section.get("att_context_size")
    pairs = [value] if isinstance(value, list) and value and not isinstance(value[0], list) else value
    supported = "[left, right] or a list of such pairs, in encoder frames"
    if not isinstance(pairs, list) or not pairs:
        section.reject("att_context_size", value, supported)
    for pair in pairs:
        if not _is_pair(pair):
            section.reject("att_context_size", value, supported)
        if min(pair) < 0:
            section.reject("att_context_size", value, "limited contexts", f"-1 is unlimited: {MIXED}")
        if max(pair) > MAX_CONTEXT:
            section.reject("att_context_size", value, f"at most {MAX_CONTEXT} frames")
    return tuple(AttentionContext(*pair) for pair in pairs)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(frames) is int for frames in value)


def _band(section: Section) -> tuple[int, int] | None:
    """Local attention of an offline model, [left, right]; None for attention to everything."""
    value = section.get("att_context_size")
    is_local = section.get("self_attention_model") == _LOCAL
    pair = value[0] if isinstance(value, list) and len(value) == 1 else value
    if pair in (None, _UNLIMITED) and not is_local:
        return None
    if not _is_pair(pair) or not all(0 <= frames <= MAX_CONTEXT for frames in pair):
        other = "" if is_local else f"{_UNLIMITED} for everything, or "
        section.reject("att_context_size", value, f"{other}[left, right] of local attention, 0 to {MAX_CONTEXT} each")
    return pair[0], pair[1]


def _live_menu(section: Section) -> LiveMenu:
    """The windows of a unified model: lists of left contexts, chunks and right contexts, in encoder frames."""
    section.ignore("att_context_size")  # in its place
    value = section.get("att_chunk_context_size")
    lists = value if isinstance(value, list) and len(value) == 3 else [None]
    if not all(isinstance(sizes, list) and sizes and all(type(size) is int for size in sizes) for sizes in lists):
        section.reject("att_chunk_context_size", value, "lists of left contexts, chunks and right contexts, in frames")
    return LiveMenu(*map(tuple, lists))
