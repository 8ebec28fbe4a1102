"""`scripts/settings_tables.py`: the generated parts of the repository are those of the declarations."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("settings_tables", ROOT / "scripts" / "settings_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_text_is_up_to_date(script):
    old = [name for name in script.GENERATED if script.up_to_date(name) != (ROOT / name).read_text(encoding="utf-8")]
    assert not old, f"{old}: run python -m scripts.settings_tables --write"


def test_a_changed_file_is_named_and_written(script, tmp_path, monkeypatch, capsys):
    for name in script.GENERATED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("PENSTOCK_THREADS", "PENSTOCK_THREAD"), encoding="utf-8")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["settings_tables.py"])
    assert script.main() == 1
    assert "compose.yaml is out of date" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["settings_tables.py", "--write"])
    assert script.main() == 0
    for name in script.GENERATED:
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")
    (tmp_path / "compose.yaml").write_text("no marks", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected one marked part, found 0"):
        script.main()
