"""The tables of docs/gateway.md are those of the declarations."""

from scripts.gateway_tables import PAGE, up_to_date


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert up_to_date(text) == text, "run python -m scripts.gateway_tables --write"
