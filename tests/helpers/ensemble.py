"""The adapters of the three models, chained as in the ensembles, with a fake of Triton's module."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from penstock.serving.model_repository import find_model_repository
from tests.helpers.fake_triton import Request, Response, load_adapter, triton_module

MODELS = ("features", "encoder", "decoder")
SPEAKER_MODELS = ("features", "encoder", "speakers", "decoder")


class Ensemble:
    """The models in one process."""

    def __init__(self, repository: Path, models: tuple[str, ...] = MODELS):
        self._models = models
        frozen = gc.get_freeze_count()
        self.adapters = {name: load_adapter(repository, name) for name in models}
        self.frozen_objects = gc.get_freeze_count() - frozen

    def answer(self, requests: list[Request]) -> list[Response]:
        """Runs the requests as one batch; outputs of a model are inputs of the next."""
        answers: list[Response] = [Response() for _ in requests]
        live, tensors = list(range(len(requests))), [dict(request.tensors) for request in requests]
        for name in self._models:
            made = [
                Request(tensors[i], requests[i].parameters(), requests[i].flags(), requests[i].correlation_id())
                for i in live
            ]
            for i, answer in zip(live, self.adapters[name].execute(made), strict=True):
                answers[i] = answer
                tensors[i] |= answer.tensors
            live = [i for i in live if answers[i].error is None]
        return answers

    def finalize(self) -> None:
        for adapter in self.adapters.values():
            adapter.finalize()


@contextmanager
def running_ensemble(
    model: Path, monkeypatch, directory: Path, max_streams: int = 3, models: tuple[str, ...] = MODELS
) -> Iterator[Ensemble]:
    """Configured as in a server. Outputs of a later model replace those of one before, as `speakers` does."""
    variables = {"MODEL": model, "RUNTIME_DIR": directory, "MAX_STREAMS": max_streams, "DEVICE": "cpu"}
    for name, value in variables.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", str(value))
    frozen, threads = gc.get_freeze_count(), torch.get_num_threads()
    try:
        with triton_module(monkeypatch):
            made = Ensemble(find_model_repository(), models)
            yield made
            made.finalize()
    finally:
        torch.set_num_threads(threads)
        if not frozen:
            gc.unfreeze()
