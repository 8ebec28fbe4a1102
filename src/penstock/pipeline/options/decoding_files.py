"""Checks the files that decoding options name against a model, by their beginnings. Does not import torch."""

from penstock.model.bundle import Checkpoint
from penstock.model.bundle_files import sha256_of
from penstock.pipeline.options.decoding_config import DecodingConfig


def check_decoding_files(decoding: DecodingConfig, checkpoint: Checkpoint) -> None:
    """LanguageModelError or GraphError for a file that is missing, of another kind, or for another model."""
    if decoding.lm:
        from penstock.scoring.ngram.io import check_vocabulary, read_token_names

        check_vocabulary(decoding.lm, read_token_names(checkpoint.tokenizer_path))
    if decoding.graph:
        from penstock.scoring.wfst.graph_file import check_graph_file

        check_graph_file(decoding.graph, checkpoint.config.vocabulary_size, sha256_of(checkpoint.tokenizer_path))
