"""Writes a bundle in Transformers format with the same weights. Needs Transformers (`oracle`).

    python -m scripts.export_transformers models/an4-rnnt-hybrid build/an4-transformers

For `python -m benchmarks.recognizer --with-transformers DIR`. A CTC head is left out: the format has none.
"""

import argparse
import sys
from pathlib import Path

from transformers import NemotronAsrStreamingConfig, NemotronAsrStreamingForRNNT

from benchmarks.transformers_models import make_processor
from penstock.errors import CheckpointError, PenstockError
from penstock.model.bundle import Checkpoint
from penstock.model.transformers.weights import source_of


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", metavar="BUNDLE", type=Path)
    parser.add_argument("directory", metavar="DIR", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        export_transformers(Checkpoint(chosen.bundle), chosen.directory)
    except (PenstockError, OSError) as error:
        print(f"scripts.export_transformers: error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {chosen.directory}")
    return 0


def export_transformers(checkpoint: Checkpoint, directory: Path) -> None:
    """Saves model and processor by Transformers' own classes; importing them gives the same tensors.

    CheckpointError for a bundle that the format cannot express.
    """
    config = checkpoint.config
    encoder, transducer = config.encoder, config.transducer
    if transducer is None or transducer.is_tdt or transducer.is_factorized:
        raise CheckpointError(f"{checkpoint.directory}: is {config.head_name}; accepted: RNN-T")
    if not encoder.has_conv_layer_norm or transducer.joint_hidden != transducer.predictor_hidden:
        raise CheckpointError(f"{checkpoint.directory}: has a batch norm, or widths of joint and predictor that differ")
    rights = tuple(context.right for context in encoder.contexts)
    model = NemotronAsrStreamingForRNNT(
        NemotronAsrStreamingConfig(
            vocab_size=transducer.vocabulary_size + 1,
            blank_token_id=transducer.vocabulary_size,
            decoder_hidden_size=transducer.predictor_hidden,
            num_decoder_layers=transducer.predictor_layers,
            hidden_act=transducer.joint_activation,
            max_symbols_per_step=transducer.max_symbols,
            encoder_config={
                "attention_bias": encoder.use_bias,
                "conv_kernel_size": encoder.conv_kernel_size,
                "convolution_bias": encoder.use_bias,
                "default_num_lookahead_tokens": rights[0],
                "hidden_size": encoder.d_model,
                "intermediate_size": encoder.d_feed_forward,
                "num_attention_heads": encoder.n_heads,
                "num_hidden_layers": encoder.n_layers,
                "num_key_value_heads": encoder.n_heads,
                "num_mel_bins": encoder.mel_bins,
                "scale_input": encoder.xscaling,
                "sliding_window": encoder.contexts[0].left + 1,
                "subsampling_conv_channels": encoder.subsampling_channels,
                "subsampling_factor": encoder.subsampling_factor,
            },
        )
    )
    state = {}
    for name, tensor in checkpoint.tensors("encoder.", "predictor.", "joint.").items():
        source = source_of(name, tuple(tensor.shape), is_offline=False)
        state[source.name] = tensor.reshape(source.shape)
    model.load_state_dict(state)
    model.generation_config.decoder_start_token_id = transducer.vocabulary_size
    processor = make_processor(checkpoint.tokenizer_path.read_bytes(), encoder.mel_bins, rights)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)


if __name__ == "__main__":
    sys.exit(main())
