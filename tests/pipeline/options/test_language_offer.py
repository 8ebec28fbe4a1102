"""Languages of a model: offered, the default, and named in errors, at most ten of them."""

import pytest

from penstock.errors import SettingError
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.pipeline.options.offers import NO_LANGUAGES, LanguageOffer, offer_languages
from penstock.serving.information import server_information


def test_a_model_offers_its_languages(golden_bundle):
    model = golden_bundle("prompt_hybrid").config
    offer = offer_languages(model, DecodingConfig())
    assert (offer.names, offer.default) == (("en-US", "en", "de-DE", "no", "auto"), "auto")
    assert [offer.prompt(name) for name in offer.names] == [0, 0, 3, 4, 5]
    assert offer_languages(model, DecodingConfig(language="no")).default == "no"
    assert offer_languages(golden_bundle("rnnt_hybrid").config, DecodingConfig()) == NO_LANGUAGES


@pytest.mark.parametrize(
    ("count", "accepted"),
    [
        (1, "l0"),
        (10, "l0, l1, l2, l3, l4, l5, l6, l7, l8, l9"),
        (12, "l0, l1, l2, l3, l4, l5, l6, l7, l8, l9 and 2 others"),
    ],
)
def test_at_most_ten_languages_are_named(count, accepted):
    offer = LanguageOffer({f"l{i}": i for i in range(count)}, "l0")
    assert offer.problem_with("l0") is None
    assert offer.problem_with("x") == f"language is 'x'; accepted: {accepted}"
    assert offer.problem_with(["l0"]) == f"language is ['l0']; accepted: {accepted}"


def test_an_unknown_default_is_rejected_before_the_server_starts(golden_bundle):
    checkpoint = golden_bundle("prompt_hybrid")
    context = checkpoint.config.encoder.contexts[0]
    assert server_information(checkpoint, context, DecodingConfig(), 4, 30.0)["languages"] == "en-US,en,de-DE,no,auto"
    with pytest.raises(SettingError, match="language is 'xx'; accepted: en-US"):
        server_information(checkpoint, context, DecodingConfig(language="xx"), 4, 30.0)
