"""Initial weights of an offline encoder, from a streaming one of the same sizes."""

import numpy as np
import torch

_STEM = "pre_encode.conv.0"
_MELS = 200


@torch.no_grad()
def offline_weights(streaming: torch.nn.Module, mels: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """A streaming encoder's weights by name, changed so that an offline encoder's layers give nearly its values.

    Feed-forward and attention stay. Convolutions and their norms keep what they have learned:

    - The first convolution gets weights for normalized features, of the mean and deviation of `mels`.
    - Causal padding of 2 and 1 has one bin more at the lower end of the spectrum, which has no place here. Frames are
      7 mel frames (70 ms) later.
    - A centered convolution has the causal one's last taps; those for what comes later begin as 0.
    - The batch norm gives each channel the mean and deviation that the layer norm gives it on `mels`.

    mels: log-mel frames [N, F] each, not normalized; the first 200 are used.
    """
    state = {name: values.clone() for name, values in streaming.state_dict().items()}
    values = np.concatenate(mels)
    mean, deviation = float(values.mean()), float(np.mean([mel.std(axis=0).mean() for mel in mels]))
    state[f"{_STEM}.bias"] += mean * state[f"{_STEM}.weight"].sum(dim=(1, 2, 3))
    state[f"{_STEM}.weight"] *= deviation
    channels = len(state[f"{_STEM}.bias"])
    projection = state["pre_encode.out.weight"]  # [D, channels * bins]
    state["pre_encode.out.weight"] = projection.unflatten(1, (channels, -1))[:, :, 1:].flatten(1)
    for index, (means, deviations) in enumerate(_norm_statistics(streaming, mels[:_MELS])):
        convolution = f"layers.{index}.conv"
        taps = state[f"{convolution}.depthwise_conv.weight"]  # [D, 1, K]
        later = taps.shape[2] // 2
        state[f"{convolution}.depthwise_conv.weight"] = torch.nn.functional.pad(taps[:, :, later:], (0, later))
        state[f"{convolution}.batch_norm.bias"], state[f"{convolution}.batch_norm.weight"] = means, deviations
    return state


def _norm_statistics(encoder: torch.nn.Module, mels: list[np.ndarray]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Mean and deviation [D] of what each layer's norm gives on these features."""
    outputs: list[list[torch.Tensor]] = [[] for _ in encoder.layers]
    hooks = [
        layer.conv.batch_norm.register_forward_hook(lambda module, inputs, output, found=found: found.append(output[0]))
        for layer, found in zip(encoder.layers, outputs, strict=True)
    ]
    encoder.eval()
    for mel in mels:
        encoder(audio_signal=torch.from_numpy(mel.T[None]), length=torch.tensor([len(mel)]))
    for hook in hooks:
        hook.remove()
    frames = [torch.cat(found) for found in outputs]  # [frames, D] each
    return [(values.mean(dim=0), values.std(dim=0)) for values in frames]
