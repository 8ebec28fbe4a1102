"""Model cards: the languages that they name, and their way into a bundle and a server's parameters."""

import pytest

from penstock.cli import main
from penstock.model.card import CARD_FILE, card_languages
from penstock.model.nemo.importer import import_nemo
from penstock.pipeline.options.decoding_config import DecodingConfig
from penstock.serving.information import server_information
from tests.helpers.golden import GOLDEN
from tests.helpers.offline_models import write_offline_nemo
from tests.helpers.transformers_files import write_transformers

CARD = "---\nlicense: cc-by-4.0\nlanguage:\n- en\n- de\n- no\n- pt-BR\n- en\n- multilingual\n- 7\n---\n# A model\n"
LANGUAGES = ("en", "de", "no", "pt-BR")


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (CARD, LANGUAGES),
        (CARD.replace("\n", "\r\n"), LANGUAGES),
        ("---\nlanguage: de\n---\n", ("de",)),
        ("---\nlicense: mit\n---\n", ()),
        ("# A model\n---\nlanguage: de\n---\n", ()),
        ("---\nlanguage: de\n", ()),
        ("---\nlanguage: [de\n---\n", ()),
        ("---\nlanguage: !!python/name:os.system\n---\n", ()),
        ("---\na: &a [de]\nlanguage: *a\n---\n", ()),
        ("", ()),
    ],
)
def test_languages_of_a_card(tmp_path, card, expected):
    (tmp_path / CARD_FILE).write_bytes(card.encode())
    assert card_languages(tmp_path) == expected


def test_a_directory_without_a_card_names_none(tmp_path):
    assert card_languages(tmp_path) == ()


def test_a_server_publishes_the_languages_of_the_card(tmp_path):
    source = write_offline_nemo(tmp_path / "a.nemo")
    before = import_nemo(source, tmp_path / "before")
    (tmp_path / CARD_FILE).write_text(CARD)
    after = import_nemo(source, tmp_path / "after")
    (before, after) = (server_information(each, None, DecodingConfig(), 4, 30.0) for each in (before, after))
    assert "detected_languages" not in before
    assert after["detected_languages"] == ",".join(LANGUAGES)
    assert (before["languages"], after["languages"]) == ("", "")
    assert before["penstock_fingerprint"] == after["penstock_fingerprint"]


def test_a_model_with_prompts_publishes_those_alone(tmp_path):
    bundle = import_nemo(GOLDEN / "prompt_hybrid.nemo", tmp_path / "bundle")
    (bundle.directory / CARD_FILE).write_text(CARD)
    found = server_information(bundle, bundle.config.encoder.contexts[0], DecodingConfig(), 4, 30.0)
    assert found["languages"] and "detected_languages" not in found


def test_the_card_of_a_directory_in_transformers_format(tmp_path, capsys):
    source = write_transformers(tmp_path / "source")
    (source / CARD_FILE).write_text(CARD)
    assert main(["import", str(source), str(tmp_path / "bundle")]) == 0
    assert card_languages(tmp_path / "bundle") == LANGUAGES
    assert ", 4 languages" in capsys.readouterr().out


def test_a_file_of_that_name_that_is_no_card_stays_where_it_is(tmp_path):
    (tmp_path / CARD_FILE).write_text("# Downloads\n")
    bundle = import_nemo(write_offline_nemo(tmp_path / "a.nemo"), tmp_path / "bundle")
    assert not (bundle.directory / CARD_FILE).exists()


def test_an_import_names_languages(tmp_path, capsys):
    source = write_offline_nemo(tmp_path / "a.nemo")
    assert main(["import", str(source), str(tmp_path / "unnamed")]) == 0
    assert "of no known language (--language)" in capsys.readouterr().out
    assert main(["import", str(source), str(tmp_path / "named"), "--language", "no", "--language", "pt-BR"]) == 0
    assert card_languages(tmp_path / "named") == ("no", "pt-BR")
    (tmp_path / "named" / CARD_FILE).write_text(CARD)
    again = ["import", str(tmp_path / "named"), str(tmp_path / "again"), "--language", "en"]
    assert main(again) == 0 and card_languages(tmp_path / "again") == ("en",)
    assert CARD.partition("---\n")[2].partition("---\n")[2] in (tmp_path / "again" / CARD_FILE).read_text()
    capsys.readouterr()
    assert main([*again[:2], str(tmp_path / "wrong"), "--language", "in English"]) == 1
    assert "--language is 'in English'; accepted: codes such as en or pt-BR" in capsys.readouterr().err
    assert main(["import", str(GOLDEN / "prompt_hybrid.nemo"), str(tmp_path / "wrong"), "--language", "en"]) == 1
    assert "this is a model with language prompts; accepted: without it" in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()
