"""Names files and folders that are given as a model and are something else, with what to do."""

from pathlib import Path

from penstock.errors import CheckpointError
from penstock.model.bundle_files import CONFIG_FILE

_LFS = "a Git LFS pointer; `git lfs pull` fetches the file itself"
_TORCH = "a checkpoint of PyTorch or Lightning; load it in NeMo and save it: model.save_to('model.nemo')"
MAGICS = {b"version https://git-lfs": _LFS, b"PK\x03\x04": "a zip archive; unpack it"}
"""Foreign files by their first bytes."""
_SUFFIXES = {
    **dict.fromkeys((".ckpt", ".pt", ".pth", ".bin"), _TORCH),
    ".onnx": "a network exported to ONNX; expected the .nemo file that it was made from",
}
_FOLDERS = {
    "model_config.yaml": "an unpacked .nemo file; pack it again: tar -cf model.nemo -C FOLDER .",
    "adapter_config.json": "a LoRA adapter; merge it into its base (PEFT: merge_and_unload()) and save the whole model",
}
"""Foreign folders by a file in them."""
_WEIGHTS = "*.safetensors"


def reject_foreign(path: Path) -> None:
    """CheckpointError for a known kind of file or folder that is no model; OSError where it cannot be read."""
    found = None
    if path.is_dir():
        if not (path / CONFIG_FILE).is_file():
            found = next((what for name, what in _FOLDERS.items() if (path / name).is_file()), None)
        pointers = (each for each in sorted(path.glob(_WEIGHTS)) if _by_content(each) == _LFS)
        if found is None and (pointer := next(pointers, None)):
            raise CheckpointError(f"{pointer}: is {_LFS}")
    elif path.is_file():
        found = _by_content(path)
        if found != _LFS:
            found = _SUFFIXES.get(path.suffix.lower(), found)
    if found:
        raise CheckpointError(f"{path}: is {found}")


def _by_content(path: Path) -> str | None:
    with path.open("rb") as file:
        start = file.read(64)
    return next((what for magic, what in MAGICS.items() if start.startswith(magic)), None)
