"""The device that a command was told to compute on."""

from penstock.errors import PenstockError


def check_device(device: str) -> None:
    """PenstockError where `--device` names what is not there."""
    import torch  # here, so that a command can be asked for its help without waiting for it

    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        found = "cpu, cuda" if torch.cuda.is_available() else "cpu; there is no CUDA device here"
        raise PenstockError(f"--device is {device!r}, expected {found}")
