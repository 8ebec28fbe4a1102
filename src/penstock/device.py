"""The device that a command or a member of the server was told to compute on."""

from typing import TYPE_CHECKING

from penstock.errors import PenstockError

if TYPE_CHECKING:
    import torch


def check_device(device: str) -> None:
    """PenstockError where `--device` names what is not there."""
    import torch  # here, so that a command can be asked for its help without waiting for it

    if device != "cpu" and not (device.partition(":")[0] == "cuda" and torch.cuda.is_available()):
        found = "cpu, cuda" if torch.cuda.is_available() else "cpu; there is no CUDA device here"
        raise PenstockError(f"--device is {device!r}, expected {found}")


def prepare_device(device: "str | torch.device") -> "torch.device":
    """The device, as this process's own: kernels, streams and tensors handed to another process are the current one's.

    float32 stays float32 there. By default cuDNN's convolutions (products where an image says so) take TF32, which
    keeps ten bits of a number: the encoder would no longer be the CPU's to 1e-4, nor a stream alone be as in a batch.
    """
    import torch  # as above

    chosen = torch.device(device)
    if chosen.type == "cuda":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if chosen.index is not None:
            torch.cuda.set_device(chosen)
    return chosen
