"""Steps of rows side by side: whole rows, and chunks with endpoints between them."""

import numpy as np
import pytest

from penstock.endpointing.rules import EndpointRules
from penstock.pipeline.results.words import NOTHING, Decoded, Token
from penstock.pipeline.stages.decoding_steps import Endpoints, RowSteps

CHUNK = 2


@pytest.fixture
def endpoints(golden_bundle) -> Endpoints:
    """Slot 1 has rules: a segment without labels ends after two chunks."""
    config = golden_bundle("rnnt_hybrid").config
    made = Endpoints(3, config, CHUNK)
    made.open(0, EndpointRules())
    made.open(1, EndpointRules(no_speech_ms=int(2 * CHUNK * config.encoder_frame_ms)))
    return made


def row_steps(endpoints: Endpoints, slots: list[int], frames: list[int], **more) -> RowSteps:
    ends_segment = np.array(more.pop("ends_segment", [False] * len(slots)))
    covered = np.full(len(slots), 10**6)
    all_frames = np.array([frames, more.pop("open_frames", [0] * len(slots))])
    is_forced = np.array(more.pop("is_forced", [False] * len(slots)))
    return RowSteps(endpoints, np.array(slots), all_frames, covered, ends_segment, is_forced, more.pop("unstable", {}))


def token(label: int) -> Token:
    return Token(label, 0, 0, -1.0)


def run(steps: RowSteps, decode) -> list[tuple[list[int], ...]]:
    taken = []
    while step := steps.next():
        taken.append(tuple(field.tolist() for field in step[:5]))
        steps.add(step, [decode(row, count) for row, count in zip(*taken[-1][:3:2], strict=True)])
    return taken


def test_a_row_without_rules_is_one_step_and_without_changes_no_part(endpoints):
    steps = row_steps(endpoints, [0, 2], [5, 0])
    assert run(steps, lambda *_: NOTHING) == [([0], [0], [5], [False], [False])]
    assert steps.parts() == {}


def test_the_last_step_of_a_row_without_rules_ends_its_segment(endpoints):
    steps = row_steps(endpoints, [0, 2], [5, 0], ends_segment=[True, True], unstable={1: [token(7)]})
    taken = run(steps, lambda row, frames: Decoded([token(row)], [], []) if frames else None)
    assert taken == [([0, 1], [0, 0], [5, 0], [True, True], [False, False])]
    (first,), (second,) = steps.parts()[0], steps.parts()[1]
    assert (first.decoded.stable, first.is_final, first.next_start_samples) == ([token(0)], True, 10**6)
    assert (second.decoded.unstable, second.is_final) == ([token(7)], True), "what its search did not change"


def test_tokens_that_may_change_are_changes_also_when_they_are_gone(endpoints):
    steps = row_steps(endpoints, [0], [1], unstable={0: [token(7)]})
    run(steps, lambda *_: NOTHING)
    ((part,),) = steps.parts().values()
    assert (part.decoded, part.is_final) == (NOTHING, False)


def test_chunks_are_steps_of_their_own_and_an_endpoint_is_one_more(endpoints):
    steps = row_steps(endpoints, [0, 1], [7, 7], ends_segment=[False, True])
    assert run(steps, lambda *_: NOTHING) == [
        ([0, 1], [0, 0], [7, 2], [False, False], [False, False]),
        ([1], [2], [2], [False], [False]),
        ([1], [4], [0], [True], [True]),
        ([1], [4], [2], [False], [False]),
        ([1], [6], [1], [False], [False]),
        ([1], [7], [0], [True], [False]),
    ]
    (parts,) = steps.parts().values()
    assert [part.is_final for part in parts] == [True, True]
    assert parts[0].next_start_samples == 4 * endpoints._frame_samples
    assert 0 < parts[0].covered_samples < parts[0].next_start_samples < parts[1].next_start_samples


def test_a_row_goes_on_behind_an_endpoint(endpoints):
    steps = row_steps(endpoints, [1], [6])
    found = iter([NOTHING, NOTHING, NOTHING, Decoded([token(3)], [], [])])
    run(steps, lambda *_: next(found))
    (parts,) = steps.parts().values()
    assert [(part.is_final, len(part.decoded.stable)) for part in parts] == [(True, 0), (False, 1)]
    steps = row_steps(endpoints, [1], [2])
    run(steps, lambda *_: NOTHING)
    assert steps.parts() == {}, "a segment with a label has no limit"


def test_a_forced_end_tells_by_number_what_the_copy_has_more(endpoints):
    """The copy has 1 2 3, the stream goes on with 1 2 4 5: the next segment has only the fourth."""
    steps = row_steps(endpoints, [0], [3], open_frames=[1], is_forced=[True])
    found = iter((Decoded([token(1)], [token(9)], []), Decoded([token(2)], [token(3)], [])))
    assert run(steps, lambda *_: next(found)) == [([0], [0], [2], [False], [False]), ([0], [2], [1], [True], [False])]
    (part,) = steps.parts()[0]
    assert part.is_final and [t.id for t in part.decoded.stable + part.decoded.unstable] == [1, 2, 3]
    steps = row_steps(endpoints, [0], [2])
    run(steps, lambda *_: Decoded([token(2)], [token(4), token(5)], []))
    ((_, (part,)),) = steps.parts().items()
    assert [t.id for t in part.decoded.stable + part.decoded.unstable] == [5]


def test_a_shorter_best_hypothesis_at_a_second_forced_end_tells_nothing(endpoints):
    for found, told in (([1, 2, 3], [1, 2, 3]), ([1, 2], []), ([1, 2, 4, 5], [5])):
        steps = row_steps(endpoints, [0], [1], open_frames=[1], is_forced=[True])
        run(steps, lambda *_, found=found: Decoded([], [token(label) for label in found], []))
        (part,) = steps.parts()[0]
        assert [t.id for t in part.decoded.unstable] == told
