"""Writes checkpoints in Transformers format as Transformers saves them, from a golden NeMo checkpoint.

tests/oracle/test_transformers_format.py compares them with what Transformers itself writes.
"""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from benchmarks import sentencepiece_proto
from penstock.errors import CheckpointError
from penstock.model.bundle import tensor_shapes
from penstock.model.config import ModelConfig
from penstock.model.source_tensors import BATCH_NORM, SourceTensor, prompt_input_sources
from penstock.model.transformers.importer import import_transformers
from penstock.model.transformers.weights import source_of
from tests.helpers.nemo_files import CONFIG, WEIGHTS, nemo_members, nemo_state, saved, tokenizer_member, write_nemo

LEFT, RIGHTS = 6, (2, 0, 5)
PLAIN, WITH_PROMPTS = "rnnt_hybrid", "prompt_hybrid"
"""The golden checkpoints that these files can be written for."""


_STREAMING = {
    r"encoder\.pre_encode\.conv\.0\.": "encoder.subsampling.conv_in.",
    r"encoder\.pre_encode\.conv\.2\.": "encoder.subsampling.layers.0.depthwise_conv.",
    r"encoder\.pre_encode\.conv\.3\.": "encoder.subsampling.layers.0.pointwise_conv.",
    r"encoder\.pre_encode\.conv\.5\.": "encoder.subsampling.layers.1.depthwise_conv.",
    r"encoder\.pre_encode\.conv\.6\.": "encoder.subsampling.layers.1.pointwise_conv.",
}
_OFFLINE = {
    r"encoder\.pre_encode\.conv\.": "encoder.subsampling.layers.",
    r"^(?:ctc_)?decoder\.decoder_layers\.0\.": "ctc_head.",
}
_BOTH = {
    r"encoder\.pre_encode\.out\.": "encoder.subsampling.linear.",
    r"\.conv\.batch_norm\.": ".conv.norm.",
    r"\.linear_([qkv])\.": r".\1_proj.",
    r"\.linear_out\.": ".o_proj.",
    r"\.linear_pos\.": ".relative_k_proj.",
    r"\.pos_bias_([uv])$": r".bias_\1",
    r"^decoder\.prediction\.embed\.": "decoder.embedding.",
    r"^decoder\.prediction\.dec_rnn\.lstm\.": "decoder.lstm.",
    r"^joint\.enc\.": "encoder_projector.",
    r"^joint\.pred\.": "decoder.decoder_projector.",
    r"^joint\.joint_net\.2\.": "joint.head.",
    r"^prompt_kernel\.0\.": "prompt_projector.linear_1.",
    r"^prompt_kernel\.2\.": "prompt_projector.linear_2.",
}


def renamed(name: str, is_offline: bool) -> str:
    """Transformers' name of a tensor of a NeMo model."""
    for pattern, replacement in ((_OFFLINE if is_offline else _STREAMING) | _BOTH).items():
        name = re.sub(pattern, replacement, name)
    return name


def contexts(case: str) -> tuple[int, tuple[int, ...]]:
    """The left context and the right ones, the default first."""
    if case == PLAIN:
        return LEFT, RIGHTS
    pairs = yaml.safe_load(nemo_members(case)[CONFIG])["encoder"]["att_context_size"]
    return pairs[0][0], tuple(right for _, right in pairs)


def shared_state(case: str = PLAIN) -> dict[str, torch.Tensor]:
    """The golden RNN-T's tensors, its joint as wide as its predictor, as Transformers has them."""
    state = {name: tensor for name, tensor in nemo_state(case).items() if not name.startswith("ctc_decoder.")}
    width = state["joint.pred.weight"].shape[1]
    for name in ("joint.pred.weight", "joint.pred.bias", "joint.enc.weight", "joint.enc.bias"):
        state[name] = state[name][:width].contiguous()
    state["joint.joint_net.2.weight"] = state["joint.joint_net.2.weight"][:, :width].contiguous()
    return state


def write_same_as_nemo(path: Path, case: str = PLAIN) -> Path:
    """The checkpoint of `write_transformers` as a .nemo."""
    document = yaml.safe_load(nemo_members(case)[CONFIG])
    suffix = "" if case == PLAIN else "WithPrompt"
    document["target"] = f"nemo.collections.asr.models.EncDecRNNTBPEModel{suffix}"
    left, rights = contexts(case)
    document["encoder"]["att_context_size"] = [[left, right] for right in rights]
    document["joint"]["jointnet"]["joint_hidden"] = document["joint"]["jointnet"]["pred_hidden"]
    del document["aux_ctc"]
    changed = {CONFIG: yaml.safe_dump(document, sort_keys=False).encode(), WEIGHTS: saved(shared_state(case))}
    return write_nemo(path, nemo_members(case) | changed)


def config_document(case: str = PLAIN) -> dict:
    """config.json of the golden RNN-T."""
    nemo = yaml.safe_load(nemo_members(case)[CONFIG])
    encoder, labels = nemo["encoder"], nemo["decoder"]["vocab_size"]
    left, rights = contexts(case)
    document = {
        "architectures": ["NemotronAsrStreamingForRNNT"],
        "blank_token_id": labels,
        "decoder_hidden_size": nemo["decoder"]["prednet"]["pred_hidden"],
        "dtype": "float32",
        "encoder_config": {
            "activation_dropout": 0.1,
            "attention_bias": encoder["use_bias"],
            "attention_dropout": 0.1,
            "conv_kernel_size": encoder["conv_kernel_size"],
            "convolution_bias": encoder["use_bias"],
            "default_num_lookahead_tokens": rights[0],
            "dropout": 0.1,
            "dropout_positions": 0.0,
            "hidden_act": "silu",
            "hidden_size": encoder["d_model"],
            "initializer_range": 0.02,
            "intermediate_size": encoder["d_model"] * encoder["ff_expansion_factor"],
            "layerdrop": 0.1,
            "max_position_embeddings": 5000,
            "model_type": "nemotron_asr_streaming_encoder",
            "num_attention_heads": encoder["n_heads"],
            "num_hidden_layers": encoder["n_layers"],
            "num_key_value_heads": encoder["n_heads"],
            "num_mel_bins": encoder["feat_in"],
            "scale_input": encoder["xscaling"],
            "sliding_window": left + 1,
            "subsampling_conv_channels": encoder["subsampling_conv_channels"],
            "subsampling_conv_kernel_size": 3,
            "subsampling_conv_stride": 2,
            "subsampling_factor": encoder["subsampling_factor"],
        },
        "hidden_act": nemo["joint"]["jointnet"]["activation"],
        "initializer_range": 0.02,
        "is_encoder_decoder": True,
        "max_symbols_per_step": nemo["decoding"]["greedy"]["max_symbols"],
        "model_type": "nemotron_asr_streaming",
        "num_decoder_layers": nemo["decoder"]["prednet"]["pred_rnn_layers"],
        "pad_token_id": 0,
        "transformers_version": "5.23.0",
        "vocab_size": labels + 1,
    }
    if case == PLAIN:
        return document
    defaults = nemo["model_defaults"]
    del document["initializer_range"]
    return document | {
        "architectures": ["Nemotron3_5AsrForRNNT"],
        "default_prompt_id": defaults["prompt_dictionary"]["auto"],
        "model_type": "nemotron3_5_asr",
        "num_prompts": defaults["num_prompts"],
        "prompt_intermediate_size": 2 * encoder["d_model"],
    }


def processor_document(case: str = PLAIN) -> dict:
    """processor_config.json of the golden RNN-T; Transformers sorts the languages."""
    nemo = yaml.safe_load(nemo_members(case)[CONFIG])
    front_end, rights = nemo["preprocessor"], contexts(case)[1]
    document = {
        "blank_token": "<blank>",
        "default_num_lookahead_tokens": rights[0],
        "feature_extractor": {
            "feature_extractor_type": "NemotronAsrStreamingFeatureExtractor",
            "feature_size": front_end["features"],
            "hop_length": 160,
            "mel_filters_dtype": "float32",
            "n_fft": front_end["n_fft"],
            "padding_side": "right",
            "padding_value": 0.0,
            "preemphasis": 0.97,
            "return_attention_mask": True,
            "sampling_rate": 16000,
            "win_length": 400,
        },
        "processor_class": "NemotronAsrStreamingProcessor",
        "supported_num_lookahead_tokens": list(rights),
    }
    if case == PLAIN:
        return document
    return document | {
        "num_prompts": nemo["model_defaults"]["num_prompts"],
        "processor_class": "Nemotron3_5AsrProcessor",
        "prompt_dictionary": dict(sorted(nemo["model_defaults"]["prompt_dictionary"].items())),
    }


def tokenizer_document(sentencepiece_model: bytes) -> dict:
    """tokenizer.json for a SentencePiece model, whichever its type: with `<pad>` and `<blank>` after its pieces."""
    proto = sentencepiece_proto.parse(sentencepiece_model)
    vocabulary = {piece.text: index for index, piece in enumerate(proto.pieces)}
    unknown = next(piece.text for piece in proto.pieces if piece.kind == sentencepiece_proto.UNKNOWN)
    added = {
        index: (piece.text, piece.kind == sentencepiece_proto.CONTROL or piece.text in (unknown, "<pad>"))
        for index, piece in enumerate(proto.pieces)
        if piece.kind in (sentencepiece_proto.CONTROL, sentencepiece_proto.USER_DEFINED) or piece.text == unknown
    }
    extra = [text for text in ("<pad>", "<blank>") if text not in vocabulary]
    added |= {len(vocabulary) + index: (text, True) for index, text in enumerate(extra)}
    steps = [
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    ]
    if proto.charsmap:
        charsmap = base64.b64encode(proto.charsmap).decode()
        steps.insert(0, {"type": "Precompiled", "precompiled_charsmap": charsmap})
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": text, **token, "special": special}
            for index, (text, special) in sorted(added.items())
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": spaces,
        "post_processor": None,
        "decoder": spaces,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(proto.pieces, vocabulary),
        },
    }


def transformers_state(case: str = PLAIN) -> dict[str, torch.Tensor]:
    """`shared_state` by Transformers' names."""
    state = {}
    for name, tensor in shared_state(case).items():
        if not name.startswith("preprocessor.") and not name.endswith("num_batches_tracked"):
            state[renamed(name, is_offline=False)] = tensor
    return state


def write_transformers(directory: Path, case: str = PLAIN) -> Path:
    """A whole checkpoint."""
    directory.mkdir()
    documents = {
        "config.json": config_document(case),
        "processor_config.json": processor_document(case),
        "tokenizer.json": tokenizer_document(nemo_members(case)[tokenizer_member(case)]),
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document, indent=2))
    save_file(transformers_state(case), directory / "model.safetensors", {"format": "pt"})
    return directory


def change_json(directory: Path, name: str, change: Callable[[dict], object]) -> None:
    """Modifies a JSON file in place; of a bundle, it has no SHA-256 of itself then, as those of earlier versions."""
    document = json.loads((directory / name).read_text())
    document.get("sha256", {}).pop(name, None)
    change(document)
    (directory / name).write_text(json.dumps(document))


def change_weights(directory: Path, change: Callable[[dict], object], name: str = "model.safetensors") -> None:
    """Modifies the tensors in place."""
    path = directory / name
    state = load_file(path)
    change(state)
    save_file(state, path)


def assert_rejected(directory: Path, match: str) -> None:
    """Checks that importing fails with the directory's name and `match` and leaves nothing behind."""
    before = sorted(directory.parent.rglob("*"))
    with pytest.raises(CheckpointError, match=match) as caught:
        import_transformers(directory, directory.parent / "bundle")
    assert str(caught.value).startswith(f"CHECKPOINT_INVALID: {directory}: ")
    assert sorted(directory.parent.rglob("*")) == before


def _merges(pieces: tuple[sentencepiece_proto.Piece, ...], vocabulary: dict[str, int]) -> list[list[str]]:
    """Every way to make a piece from two others, the best scores first (Transformers' generate_merges)."""
    found = []
    for piece in pieces:
        pairs = [(piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        known.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        found += [(piece.score, len(left), len(right), left, right) for left, right in known]
    found.sort(key=lambda entry: entry[:3], reverse=True)
    return [[left, right] for *_, left, right in found]


def sources_of(config: ModelConfig) -> list[SourceTensor]:
    """Every tensor of model.safetensors."""
    sources = prompt_input_sources("prompt_projector.linear_1", config)
    for name, shape in tensor_shapes(config).items():
        is_folded = name.endswith("convolution.depthwise.weight") and not config.encoder.has_conv_layer_norm
        is_made = name.endswith("convolution.depthwise.bias") and not config.encoder.use_bias
        if not name.startswith("features.") and name not in ("prompt.in.weight", "prompt.table") and not is_made:
            sources += (source_of(name, shape, config.encoder.is_offline),)
        if is_folded:
            place = source_of(name, shape, config.encoder.is_offline).name.replace("depthwise_conv.weight", "norm")
            sources += tuple(SourceTensor(f"{place}.{part}", shape[:1]) for part in BATCH_NORM)
    return list(sources)
