"""Converts a speaker model of Transformers (`nemotron3_diarization`) to a bundle; nothing of it is executed."""

from pathlib import Path
from shutil import copytree

from penstock.errors import CheckpointError, naming
from penstock.model.new_bundle import place_new_bundle
from penstock.model.section import Section
from penstock.model.source_tensors import SourceTensor, StateDict, front_end_tensors, reject_rest, stored, take
from penstock.model.transformers.config import WITHOUT_EFFECT, errors_of, read_features
from penstock.model.transformers.files import CONFIG, PROCESSOR, SPEAKER_MODEL_TYPE, WEIGHTS, content_sha256, read_json
from penstock.model.transformers.weights import load_state_dict
from penstock.speakers.bundle import (
    CachePolicy,
    QueueSize,
    SpeakerCheckpoint,
    SpeakerConfig,
    StepSize,
    speaker_shapes,
    write_speaker_checkpoint,
)
from penstock.speakers.network import store_int8

_PLACES = {
    "embedding": "model.audio_tower.embedder.projection",
    "norm_in": "model.audio_tower.input_layer_norm",
    "norm_out": "model.audio_tower.layer_norm",
    "head.in": "model.proj",
    "head.upsampling": "model.upsampler.conv",
    "head.hidden": "classifier.dense",
    "head.out": "classifier.out_proj",
}
_LAYER_PLACES = {
    "attention.norm": "layer_norm1",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "feed_forward.norm": "layer_norm2",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
}


def import_speakers(
    source: Path,
    directory: Path,
    half: bool = False,
    replace: bool = False,
    origin: dict[str, str] | None = None,
    is_int8: bool = False,
) -> SpeakerCheckpoint:
    """Converts the checkpoint in the directory `source` to a bundle at `directory`, as `import_transformers` does.

    is_int8: with the products of `store_int8`.
    """

    def convert(scratch: Path) -> Path:
        with naming(source, CheckpointError):
            config = read_speaker_config(source)
            tensors = convert_speaker_tensors(load_state_dict(source), config, half)
            provenance = {"sha256": content_sha256(source), "class": SPEAKER_MODEL_TYPE, **(origin or {})}
            checkpoint = write_speaker_checkpoint(scratch / "bundle", config, tensors, provenance)
            return (store_int8(checkpoint) if is_int8 else checkpoint).directory

    place_new_bundle(directory, replace, convert)
    return SpeakerCheckpoint(directory)


def convert_to_int8(bundle: Path, directory: Path, replace: bool) -> SpeakerCheckpoint:
    """Writes a bundle again at `directory`, with the products of `store_int8`."""
    source = SpeakerCheckpoint(bundle).directory
    place_new_bundle(
        directory,
        replace,
        lambda scratch: store_int8(SpeakerCheckpoint(copytree(source, scratch / "bundle"))).directory,
    )
    return SpeakerCheckpoint(directory)


def convert_speaker_tensors(state: StateDict, config: SpeakerConfig, half: bool) -> StateDict:
    """Returns the tensors of `speaker_shapes(config)`, as `convert_state_dict` does."""
    remaining = dict(state)
    tensors: StateDict = front_end_tensors(config.features)
    for name, shape in speaker_shapes(config).items():
        if name not in tensors:
            tensors[name] = take(WEIGHTS, remaining, SourceTensor(_source(name), shape))
    reject_rest(WEIGHTS, remaining)
    return {name: stored(WEIGHTS, name, tensor, half, copy=False) for name, tensor in tensors.items()}


def read_speaker_config(directory: Path) -> SpeakerConfig:
    """Converts config.json and processor_config.json; raises CheckpointError as `read_transformers_config`."""
    with errors_of(CONFIG):
        root = Section("", read_json(directory / CONFIG))
        root.only("model_type", None, (SPEAKER_MODEL_TYPE,))
        audio, head = root.section("audio_config"), root.section("head_config")
        factor, d_model = audio.integer("subsampling_factor"), audio.integer("hidden_size")
    with errors_of(PROCESSOR):
        processor = Section("", read_json(directory / PROCESSOR))
        features = read_features(processor.section("feature_extractor"), is_offline=False)
        processor.only("subsampling_factor", None, (factor,), f"it must equal that of {CONFIG}")
        modes = _modes(processor)
        processor.ignore("processor_class")
        processor.reject_unknown()
    with errors_of(CONFIG):
        rope = audio.section("rope_parameters")
        rope.only("rope_type", "default", ("default",))
        theta, share = rope.number("rope_theta"), rope.number("partial_rotary_factor", 1.0)
        heads = audio.integer("num_attention_heads")
        audio.only("num_key_value_heads", heads, (heads,))
        audio.only("num_mel_bins", None, (features.mel_bins,), f"it must equal feature_size in {PROCESSOR}")
        audio.only("hidden_act", None, ("gelu",))
        audio.ignore("model_type", "max_position_embeddings", "attention_dropout", *WITHOUT_EFFECT)
        speakers = head.integer("num_speakers")
        head.only("audio_hidden_size", d_model, (d_model,))
        head.only("subsampling_factor", factor, (factor,))
        head.ignore("model_type", *WITHOUT_EFFECT)
        policy, live_queue = _cache(root.section("streaming_config"), speakers, factor)
        config = SpeakerConfig(
            features=features,
            d_model=d_model,
            n_layers=audio.integer("num_hidden_layers"),
            n_heads=heads,
            d_feed_forward=audio.integer("intermediate_size"),
            subsampling_factor=factor,
            d_head=head.integer("hidden_size"),
            speakers=speakers,
            rope_theta=theta,
            rotary_share=share,
            cache=policy,
            live_queue=live_queue,
            file_queue=_queue(root),
            file_step=StepSize(
                root.integer("chunk_length"),
                root.integer("chunk_right_context", minimum=0),
                root.integer("chunk_left_context", 0, minimum=0),
            ),
            live_steps=modes,
        )
        root.ignore(*WITHOUT_EFFECT)
        for section in (rope, audio, head, root):
            section.reject_unknown()
        return config


def _cache(section: Section, speakers: int, factor: int) -> tuple[CachePolicy, QueueSize]:
    section.only("num_speakers", speakers, (speakers,))
    section.only("subsampling_factor", factor, (factor,))
    policy = CachePolicy(
        frames=section.integer("speaker_cache_length"),
        silence_frames=section.integer("speaker_cache_silence_frames_per_speaker", minimum=0),
        min_probability=section.number("prediction_score_threshold"),
        newest_boost=section.number("latest_frames_score_boost"),
        strong_rate=section.number("strong_boost_rate"),
        weak_rate=section.number("weak_boost_rate"),
        positive_rate=section.number("min_positive_scores_rate"),
    )
    queue = _queue(section)
    section.ignore("model_type", *WITHOUT_EFFECT)
    section.reject_unknown()
    return policy, queue


def _queue(section: Section) -> QueueSize:
    names = ("fifo_length", "speaker_cache_update_period")
    return QueueSize(*(section.integer(name) for name in names))


def _modes(processor: Section) -> dict[str, StepSize]:
    section = processor.section("streaming_modes")
    sizes = {}
    for name, value in section.items():
        if not isinstance(value, list) or len(value) != 2:
            section.reject(name, value, "[chunk, look-ahead] in encoder frames")
        sizes[name] = StepSize(*value)
    default = processor.get("streaming_mode", next(iter(sizes), None))
    if default not in sizes:
        processor.reject("streaming_mode", default, f"one of {list(sizes)}")
    return {default: sizes[default]} | sizes


def _source(name: str) -> str:
    """The name in Transformers."""
    if name == "silence":
        return "silence_embeds"
    place, _, last = name.rpartition(".")
    if place.startswith("layers."):
        _, number, rest = place.split(".", 2)
        return f"model.audio_tower.layers.{number}.{_LAYER_PLACES[rest]}.{last}"
    return f"{_PLACES[place]}.{last}"
