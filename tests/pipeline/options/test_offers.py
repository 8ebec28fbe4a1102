"""Decoders and languages follow from the model and the settings, and what is not offered says what it needs."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch

from penstock.errors import SettingError, StreamError
from penstock.model.bundle import Checkpoint
from penstock.model.config import FACTORIZED, CtcConfig, IlmPair
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import NO_LANGUAGES, LanguageOffer, offer_decoders, offer_languages
from penstock.pipeline.options.stream_options import OptionReader
from penstock.pipeline.results.results import StreamResult
from penstock.pipeline.slots.ledger import SlotLedger
from penstock.pipeline.slots.table import Lease
from penstock.pipeline.stages.decoder import DecoderStage
from penstock.serving.information import server_information
from penstock_common.options import CTC_DECODERS, DECODERS, TRANSDUCER_DECODERS, WFST
from tests.helpers.random_models import random_checkpoint, random_ctc_checkpoint
from tests.helpers.stage_requests import DecoderRequest, decode

PLAIN, WITH_GRAPH = DecodingConfig(), DecodingConfig(graph="some.safetensors")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return random_checkpoint(tmp_path_factory.mktemp("transducer"), 1)


def test_a_transducer_alone(checkpoint):
    offer = offer_decoders(checkpoint.config, PLAIN)
    assert (offer.names, offer.default) == (TRANSDUCER_DECODERS, "greedy")
    assert offer.problem_with("alsd") is None
    assert offer.problem_with("ctc") == (
        f"decoder 'ctc' is not offered: it needs a model with a CTC head; offered: {', '.join(TRANSDUCER_DECODERS)}"
    )
    assert offer.problem_with(3) == f"decoder 3 is not known; offered: {', '.join(TRANSDUCER_DECODERS)}"
    assert offer.alternatives(("alsd", "aes", "ctc")) == "alsd or aes"
    with pytest.raises(SettingError, match="graph is given, but the model has no CTC head"):
        offer_decoders(checkpoint.config, WITH_GRAPH)


def test_a_ctc_head_alone(checkpoint):
    config = dataclasses.replace(checkpoint.config, transducer=None, ctc=CtcConfig(48))
    offer = offer_decoders(config, PLAIN)
    assert (offer.names, offer.default) == (tuple(name for name in CTC_DECODERS if name != WFST), "ctc")
    assert "is not offered: it needs a model with a transducer; offered: ctc" in offer.problem_with("greedy")
    assert (
        "is not offered: it needs a decoding graph (--graph, for penstock evaluate wfst:graph=FILE); offered: ctc"
        in offer.problem_with("wfst")
    )
    assert offer_decoders(config, WITH_GRAPH).names == CTC_DECODERS


def test_both_heads(checkpoint):
    config = dataclasses.replace(checkpoint.config, ctc=CtcConfig(48))
    offer = offer_decoders(config, WITH_GRAPH)
    assert (offer.names, offer.default, dict(offer.needs)) == (DECODERS, "greedy", {})


def test_weights_of_the_internal_language_model(checkpoint, tmp_path):
    """The server's, else the checkpoint's for greedy and for beam search."""
    factorized = random_checkpoint(tmp_path, 1, kind=FACTORIZED)
    transducer = dataclasses.replace(factorized.config.transducer, ilm_beam=IlmPair(0.6, 0.6))
    config = dataclasses.replace(factorized.config, transducer=transducer)
    assert offer_decoders(config, PLAIN).ilm == {"greedy": (1, 0), "alsd": (0.6, 0.6), "aes": (0.6, 0.6)}
    assert offer_decoders(config, DecodingConfig(ilm_beta=0.4)).ilm["greedy"] == (1, 0.4)
    assert offer_decoders(config, DecodingConfig(ilm_alpha=0, ilm_beta=0)).ilm["aes"] == (0, 0)
    assert offer_decoders(config, PLAIN).names == TRANSDUCER_DECODERS
    assert offer_decoders(checkpoint.config, PLAIN).ilm == {}


def test_settings_that_a_model_cannot_use(checkpoint, tmp_path):
    factorized = random_checkpoint(tmp_path, 1, kind=FACTORIZED).config
    with pytest.raises(SettingError, match="kernels is 'fused', but a factorized transducer has no fused kernels; acc"):
        offer_decoders(factorized, DecodingConfig(kernels="fused"))
    with pytest.raises(SettingError, match=r"ilm_beta is 0.5, but the model has no internal language model; acc.*: 0"):
        offer_decoders(checkpoint.config, DecodingConfig(ilm_beta=0.5))
    with pytest.raises(SettingError, match=r"ilm_alpha is 0, but the model has no internal .* accepted: 1"):
        offer_decoders(checkpoint.config, DecodingConfig(ilm_alpha=0))
    assert offer_decoders(checkpoint.config, DecodingConfig(ilm_alpha=1, ilm_beta=0)).ilm == {}


def test_a_stage_builds_what_is_offered_and_starts_streams_with_the_default(tmp_path):
    checkpoint = random_ctc_checkpoint(tmp_path, 1)
    stage = DecoderStage(checkpoint, 2, SlotLedger(2))
    assert stage.decoders == offer_decoders(checkpoint.config, PLAIN).names
    stage.warm_up(2)
    frames = torch.randn(20, checkpoint.config.encoder.d_model, generator=torch.Generator().manual_seed(1))
    (result,) = decode(stage, [DecoderRequest(Lease(0, 1), frames, 0, True, True)])
    assert isinstance(result, StreamResult) and result.tokens
    assert sum(stage.truncation) == 0


def test_a_model_offers_its_languages(golden_bundle):
    model = golden_bundle("prompt_hybrid")
    offer = offer_languages(model, DecodingConfig())
    assert (offer.names, offer.default) == (("en-US", "en", "de-DE", "no", "auto"), "auto")
    assert [offer.prompt(name) for name in offer.names] == [0, 0, 3, 4, 5]
    assert offer_languages(model, DecodingConfig(language="no")).default == "no"
    assert offer_languages(golden_bundle("rnnt_hybrid"), DecodingConfig()) == NO_LANGUAGES


@pytest.mark.parametrize(
    ("offer", "rules"),
    [
        (NO_LANGUAGES, None),
        (LanguageOffer({}, detected=("de-DE",)), "de"),
        (LanguageOffer({}, detected=("de", "en", "fi")), None),
        (LanguageOffer({"en-US": 0, "ja": 1}, "en-US"), "en"),
        (LanguageOffer({"auto": 0, "pt_BR": 1}, "auto"), None),
        (LanguageOffer({"auto": 0, "pt_BR": 1}, "auto", writes_tags=True), "auto"),
    ],
)
def test_figures_are_written_by_the_rules_of_a_known_language(offer, rules):
    assert (offer.figure_rules("words", None), offer.figure_rules("nl", "ja")) == ("", "nl")
    with nullcontext() if rules else pytest.raises(SettingError, match="numbers is 'figures', but the language is "):
        assert offer.figure_rules("figures", None) == rules


def test_a_default_without_rules_is_rejected_and_another_language_keeps_its_words(golden_bundle):
    checkpoint = golden_bundle("prompt_hybrid")
    offer_languages(checkpoint, DecodingConfig(numbers="figures", language="de-DE"))
    with pytest.raises(SettingError, match="numbers is 'figures', but the language is 'no'; accepted: words, or"):
        offer_languages(checkpoint, DecodingConfig(numbers="figures", language="no"))
    default = OptionReader(checkpoint, DecodingConfig(numbers="figures", language="de-DE"))
    assert [default.read(given).figures for given in ({}, {"language": "no"}, {"numbers": "words"})] == ["de", "", ""]
    reader = OptionReader(checkpoint, DecodingConfig(language="no"))
    german = reader.read({"language": "de-DE", "numbers": "figures"})
    assert (german.figures, reader.read_change({"language": "en"}, german).figures) == ("de", "en")
    assert reader.read_change({"numbers": "words"}, german).figures == ""
    for options, current in (({"numbers": "figures"}, reader.read({})), ({"language": "no"}, german)):
        with pytest.raises(StreamError, match="numbers is 'figures', but the language is 'no'"):
            reader.read_change(options, current)
    with pytest.raises(StreamError, match="numbers is 'fi'; accepted: words; figures, by the language"):
        reader.read({"numbers": "fi"})


def test_an_unknown_default_is_rejected_before_the_server_starts(golden_bundle):
    checkpoint = golden_bundle("prompt_hybrid")
    context = checkpoint.config.encoder.contexts[0]
    assert server_information(checkpoint, context, DecodingConfig(), 4, 30.0)["languages"] == "en-US,en,de-DE,no,auto"
    with pytest.raises(SettingError, match="language is 'xx'; accepted: en-US"):
        server_information(checkpoint, context, DecodingConfig(language="xx"), 4, 30.0)
