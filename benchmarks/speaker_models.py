"""Tiny speaker models in Transformers' format with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from penstock.speakers.bundle import speaker_shapes
from penstock.speakers.importer import _source, read_speaker_config


def speaker_documents(width: int = 64, layers: int = 2, cache: int = 40) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and processor_config.json."""
    audio = {
        "hidden_act": "gelu", "hidden_size": width, "intermediate_size": 96,
        "model_type": "nemotron3_diarization_audio",
        "num_attention_heads": 4, "num_hidden_layers": layers, "num_key_value_heads": 4, "num_mel_bins": 32,
        "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"},
        "subsampling_factor": 8, "max_position_embeddings": 5000, "attention_dropout": 0.0,
    }  # fmt: skip
    head = {"audio_hidden_size": width, "hidden_size": 24, "num_speakers": 8, "subsampling_factor": 8}
    streaming = {
        "fifo_length": 30, "speaker_cache_update_period": 24, "speaker_cache_length": cache,
        "speaker_cache_silence_frames_per_speaker": 1, "prediction_score_threshold": 0.25,
        "latest_frames_score_boost": 0.05, "strong_boost_rate": 0.75, "weak_boost_rate": 1.5,
        "min_positive_scores_rate": 0.5, "num_speakers": 8, "subsampling_factor": 8,
    }  # fmt: skip
    config = {
        "architectures": ["Nemotron3DiarizationForAudioFrameClassification"], "model_type": "nemotron3_diarization",
        "audio_config": audio, "head_config": head, "streaming_config": streaming, "chunk_length": 34,
        "chunk_right_context": 6, "chunk_left_context": 0, "fifo_length": 10, "speaker_cache_update_period": 20,
    }  # fmt: skip
    extractor = {
        "feature_extractor_type": "NemotronAsrStreamingFeatureExtractor", "feature_size": 32, "hop_length": 160,
        "n_fft": 512, "preemphasis": 0.97, "sampling_rate": 16000, "win_length": 400,
    }  # fmt: skip
    processor = {
        "feature_extractor": extractor, "processor_class": "Nemotron3DiarizationProcessor", "subsampling_factor": 8,
        "streaming_mode": "low_latency",
        "streaming_modes": {"low_latency": [9, 4], "very_low_latency": [6, 2], "ultra_low_latency": [3, 1]},
    }  # fmt: skip
    return config, processor


def write_speakers(directory: Path, seed: int = 0, **sizes: int) -> Path:
    """Writes a checkpoint whose probabilities vary; sizes: of `speaker_documents`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, document in zip(("config.json", "processor_config.json"), speaker_documents(**sizes), strict=True):
        (directory / name).write_text(json.dumps(document))
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in speaker_shapes(read_speaker_config(directory)).items():
        if not name.startswith("features."):
            gain = 0.4 if name.startswith("head.out") else 1.5  # most probabilities below 1
            scale = gain / torch.Size(shape[1:]).numel() ** 0.5 if len(shape) > 1 else 0.3
            state[_source(name)] = torch.randn(shape, generator=generator) * scale + (name.endswith("norm.weight"))
    save_file(state, directory / "model.safetensors")
    return directory
