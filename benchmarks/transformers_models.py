"""NeMo's names of tensors in Transformers, and the processor of a model in Transformers' format."""

import importlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import NemotronAsrStreamingProcessor

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


def make_processor(
    sentencepiece_model: bytes,
    mel_bins: int,
    rights: Sequence[int],
    prompts: Mapping[str, int] | None = None,
    prompt_count: int = 0,
) -> "NemotronAsrStreamingProcessor":
    """Front end and tokenizer as Transformers' script for .nemo files makes them.

    rights: contexts, the default first; prompts: of a model with language prompts, of which there are `prompt_count`.
    """
    import transformers
    from tokenizers import AddedToken
    from transformers.utils import sentencepiece_model_pb2_new

    # The module by its name, because the package has a function of the same name. By itself it takes the message
    # module of sentencepiece, which needs a newer protobuf.
    converters = importlib.import_module("transformers.convert_slow_tokenizer")
    converters.import_protobuf = lambda *_: sentencepiece_model_pb2_new
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "tokenizer.model"
        path.write_bytes(sentencepiece_model)
        converted = converters.ParakeetConverter(str(path)).converted()
    tokenizer = transformers.ParakeetTokenizer(tokenizer_object=converted, clean_up_tokenization_spaces=False)
    special = {text: AddedToken(text, normalized=False, special=True) for text in ("<unk>", "<pad>", "<blank>")}
    if tokenizer.convert_tokens_to_ids("<pad>") is None:
        tokenizer.add_tokens([special["<pad>"]])
    tokenizer.add_tokens([special["<blank>"]])
    tokenizer.add_special_tokens({"pad_token": special["<pad>"], "unk_token": special["<unk>"]})
    contexts = {"supported_num_lookahead_tokens": list(rights), "default_num_lookahead_tokens": rights[0]}
    front_end = transformers.NemotronAsrStreamingFeatureExtractor(feature_size=mel_bins)
    if prompts is None:
        return transformers.NemotronAsrStreamingProcessor(front_end, tokenizer, **contexts)
    return transformers.Nemotron3_5AsrProcessor(
        front_end, tokenizer, **contexts, prompt_dictionary=prompts, num_prompts=prompt_count
    )
