"""Offline models for tests: golden NeMo checkpoints with the encoder of one, and random bundles."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from safetensors.torch import save_file

from benchmarks.random_models import OFFLINE
from penstock.model.bundle import Checkpoint
from penstock.model.config import EncoderConfig
from penstock.model.nemo.importer import import_nemo
from tests.helpers.nemo_files import CONFIG, WEIGHTS, nemo_members, nemo_state, saved, tokenizer_member, write_nemo
from tests.helpers.random_models import random_encoder
from tests.helpers.transformers_files import processor_document, renamed, shared_state, tokenizer_document

BUNDLED = Path(__file__).parents[2] / "models" / "an4-offline"
_OUT = "encoder.pre_encode.out.weight"
_PARAKEET = "tdt_hybrid"
_TRANSDUCER = ("decoder.", "joint.")


def random_offline_encoder(seed: int) -> EncoderConfig:
    """Config of `random_encoder`, without contexts and with an odd kernel."""
    causal = random_encoder(seed)
    return replace(causal, contexts=(), conv_kernel_size=causal.conv_kernel_size // 2 * 2 + 1)


def offline_document(case: str = "rnnt_hybrid") -> dict:
    """model_config.yaml of a golden checkpoint, changed to that of an offline model."""
    document = yaml.safe_load(nemo_members(case)[CONFIG])
    document["encoder"] |= OFFLINE
    document["preprocessor"]["normalize"] = "per_feature"
    return document


def unified_document(document: dict) -> None:
    """Changes an offline model's document to one like that of parakeet-unified."""
    document["encoder"] |= {
        "att_context_style": "chunked_limited_with_rc",
        "att_chunk_context_size": [[70], [1, 2, 7, 13], [0, 1, 13]],
        "conv_context_style": "dcc",
    }


def offline_state(case: str = "rnnt_hybrid") -> dict[str, torch.Tensor]:
    """Tensors of the offline model; its subsampling has one bin less in the end."""
    document, state = offline_document(case), nemo_state(case)
    bins = document["encoder"]["feat_in"] // document["encoder"]["subsampling_factor"]
    width = document["encoder"]["d_model"]
    channels = document["encoder"]["subsampling_conv_channels"]
    state[_OUT] = state[_OUT].view(width, channels, -1)[:, :, :bins].flatten(1).clone()
    return state


def write_offline_nemo(
    path: Path,
    case: str = "rnnt_hybrid",
    change: Callable[[dict], object] = lambda document: None,
    change_state: Callable[[dict], object] = lambda state: None,
) -> Path:
    """A .nemo of a golden checkpoint as an offline model; `change` and `change_state` modify it in place."""
    document, state = offline_document(case), offline_state(case)
    change(document)
    change_state(state)
    changed = {CONFIG: yaml.safe_dump(document).encode(), WEIGHTS: saved(state)}
    return write_nemo(path, nemo_members(case) | changed)


def offline_bundle(directory: Path, case: str = "rnnt_hybrid") -> Checkpoint:
    """Bundle of the offline model; the joint is as that of the golden one, so a few frames have labels."""
    return import_nemo(write_offline_nemo(directory / f"{case}.nemo", case), directory / case)


def write_offline_transformers(directory: Path, kind: str = "tdt") -> Path:
    """The golden `tdt_hybrid` as an offline model in Transformers format, with its transducer or with its CTC head."""
    document, state = offline_document(_PARAKEET), shared_state(_PARAKEET) | {_OUT: offline_state(_PARAKEET)[_OUT]}
    encoder, labels = document["encoder"], document["decoder"]["vocab_size"]
    config = {
        "model_type": f"parakeet_{kind}",
        "architectures": [f"ParakeetFor{kind.upper()}"],
        "vocab_size": labels + 1,
        "encoder_config": {
            "model_type": "parakeet_encoder",
            "attention_bias": encoder["use_bias"],
            "convolution_bias": encoder["use_bias"],
            "conv_kernel_size": encoder["conv_kernel_size"],
            "hidden_act": "silu",
            "hidden_size": encoder["d_model"],
            "intermediate_size": encoder["d_model"] * encoder["ff_expansion_factor"],
            "num_attention_heads": encoder["n_heads"],
            "num_hidden_layers": encoder["n_layers"],
            "num_mel_bins": encoder["feat_in"],
            "scale_input": encoder["xscaling"],
            "subsampling_conv_channels": encoder["subsampling_conv_channels"],
            "subsampling_conv_kernel_size": 3,
            "subsampling_conv_stride": 2,
            "subsampling_factor": encoder["subsampling_factor"],
        },
    }
    if kind == "ctc":
        config |= {"pad_token_id": labels, "ctc_loss_reduction": "mean", "ctc_zero_infinity": True}
        state = {name: tensor for name, tensor in offline_state(_PARAKEET).items() if not name.startswith(_TRANSDUCER)}
    else:
        config |= {
            "blank_token_id": labels,
            "pad_token_id": 2,
            "decoder_hidden_size": document["decoder"]["prednet"]["pred_hidden"],
            "num_decoder_layers": document["decoder"]["prednet"]["pred_rnn_layers"],
            "hidden_act": document["joint"]["jointnet"]["activation"],
            "max_symbols_per_step": 10,
            "durations": document["decoding"]["durations"],
        }
    front_end = processor_document()["feature_extractor"] | {"feature_extractor_type": "ParakeetFeatureExtractor"}
    del front_end["mel_filters_dtype"]
    processor = {"processor_class": "ParakeetProcessor", "decoder_type": kind, "feature_extractor": front_end}
    tokenizer = tokenizer_document(nemo_members(_PARAKEET)[tokenizer_member(_PARAKEET)])
    directory.mkdir()
    documents = {"config.json": config, "processor_config.json": processor, "tokenizer.json": tokenizer}
    for name, content in documents.items():
        (directory / name).write_text(json.dumps(content))
    kept = {
        renamed(name, is_offline=True): tensor.clone()
        for name, tensor in state.items()
        if not name.startswith("preprocessor.")
    }
    save_file(kept, directory / "model.safetensors")
    return directory
