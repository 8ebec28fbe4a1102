from pathlib import Path

import pytest

from penstock import model_repository
from penstock.errors import PenstockError
from penstock.model_repository import find_model_repository


@pytest.fixture
def repository(tmp_path) -> Path:
    (tmp_path / "models" / "asr").mkdir(parents=True)
    (tmp_path / "models" / "asr" / "config.pbtxt").touch()
    return tmp_path / "models"


def test_option_before_variable_before_checkout(repository):
    environment = {"PENSTOCK_MODEL_REPOSITORY": str(repository)}
    assert find_model_repository(str(repository), {"PENSTOCK_MODEL_REPOSITORY": "/nowhere"}) == repository
    assert find_model_repository(None, environment) == repository
    assert find_model_repository(None, {}) == Path(__file__).parents[1] / "model_repository"


def test_a_folder_without_the_models_is_refused(tmp_path, monkeypatch):
    with pytest.raises(PenstockError, match=r"asr/config\.pbtxt is missing"):
        find_model_repository(str(tmp_path), {})
    monkeypatch.setattr(model_repository, "_OF_CHECKOUT", tmp_path)
    with pytest.raises(PenstockError, match=r"--model-repository or PENSTOCK_MODEL_REPOSITORY"):
        find_model_repository(None, {})
