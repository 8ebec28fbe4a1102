"""Numbers as words or figures: the server's option, by the model's languages and the client's."""

from dataclasses import replace

import pytest

from gateway.tests.helpers.fake_streams import GROUP
from penstock_common.options import FIGURE_LANGUAGES
from penstock_gateway.errors import GatewayCode, GatewayError
from penstock_gateway.stream.options import choose_language, choose_numbers, shown_language

ALL = ",".join(FIGURE_LANGUAGES)


def chosen(asked, languages="", detected="", rules=ALL, code="", is_lenient=False):
    lists = {"languages": tuple(languages.split()), "detected_languages": tuple(detected.split())}
    group = replace(GROUP, **lists, parameters={"figure_languages": rules} if rules else {})
    language, shown = choose_language(code, group, "language"), shown_language(group, code, "en-US")
    return choose_numbers(asked, group, language, shown, None if is_lenient else "numbers")


@pytest.mark.parametrize(
    ("asked", "fields", "expected"),
    [
        ("figures", {}, "en"),
        ("figures", {"detected": "de"}, "de"),
        ("figures", {"detected": "en de fr", "code": "fr"}, "fr"),
        ("figures", {"languages": "en-US de-DE", "rules": "en,de"}, "figures"),
        ("figures", {"languages": "ja-JP auto", "rules": "auto", "code": "auto"}, "figures"),
        ("nl", {"languages": "en-US", "rules": "en"}, "nl"),
        ("words", {}, "words"),
        ("words", {"rules": ""}, None),
        (None, {}, None),
    ],
)
def test_the_language_chooses_the_rules(asked, fields, expected):
    assert chosen(asked, **fields) == chosen(asked, **fields, is_lenient=True) == expected


@pytest.mark.parametrize(
    ("asked", "fields", "lenient"),
    [
        ("figures", {"languages": "ja-JP", "rules": "en", "code": "ja"}, "words"),
        ("figures", {"languages": "ja-JP en-US", "rules": "en"}, "words"),
        ("figures", {"detected": "en de"}, "words"),
        ("de", {"rules": ""}, None),
    ],
)
def test_a_language_without_rules_is_named_where_figures_are_asked_for(asked, fields, lenient):
    with pytest.raises(GatewayError, match=f"numbers is '{asked}'.*; accepted: words") as error:
        chosen(asked, **fields)
    assert (error.value.code, error.value.param) == (GatewayCode.FIELD_INVALID, "numbers")
    assert chosen(asked, **fields, is_lenient=True) == lenient
