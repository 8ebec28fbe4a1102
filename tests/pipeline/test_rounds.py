"""Requests of one stream in a batch are processed in order, and others share their batches."""

from penstock.pipeline.rounds import process_in_rounds


def test_round_k_has_the_k_th_request_of_each_stream():
    batches = []

    def process(requests: list[str]) -> list[str]:
        batches.append(requests)
        return [request.upper() for request in requests]

    requests = ["a1", "b1", "a2", "a3", "c1", "b2"]
    assert process_in_rounds(process, requests, lambda request: request[0]) == ["A1", "B1", "A2", "A3", "C1", "B2"]
    assert batches == [["a1", "b1", "c1"], ["a2", "b2"], ["a3"]]


def test_no_requests():
    assert process_in_rounds(lambda requests: requests, [], lambda request: request) == []
