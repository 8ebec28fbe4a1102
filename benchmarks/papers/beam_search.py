"""Grigoryan et al., "Pushing the limits of beam search decoding for Transducer-based ASR models": tables 1 and 2.

Rows for table 3 are in the JSON alone.
"""

from collections.abc import Iterator, Sequence

from benchmarks.papers.inputs import BATCH, LM_WEIGHT, PieceLm, RandomRun, RandomWindows, Speech, encoder_frames
from benchmarks.papers.runner import (
    Row,
    Settings,
    Streams,
    both,
    entries_of,
    fewest_and_most_streams,
    first,
    lines_of,
    measured,
    ratio,
    select,
    total_rtfx,
    wer_percent,
)
from benchmarks.penstock_decoders import penstock_systems
from benchmarks.random_models import KINDS, TDT
from benchmarks.systems import (
    AES,
    ALSD,
    LABEL_LOOPING,
    NEMO,
    PENSTOCK,
    PRECOMPUTED,
    WHOLE,
    Selection,
    System,
    Unavailable,
)
from penstock.kernels.capability import TORCH
from penstock.reporting import markdown_table, three_digits

BEAM = 6
_LM = ("no LM", "LM")
_ERRORS = [
    ("greedy", LABEL_LOOPING, ("14.65, 13.14", "2250, 2111", "6.37, 6.24", "2605, 2348")),
    ("AES++", AES, ("14.60, 12.21", "629, 522", "-", "-")),
    ("ALSD++", ALSD, ("14.57, 11.43", "1917, 1780", "5.87, 4.43", "2495, 2279")),
]
"""WER on SPGI without and with the language model, RTFx; RNN-T of 1,000 hours, then TDT of 24,000."""
_BATCHES = {
    1: ((29, 17, 99, 30), (32, 27, 145, 76)),
    4: ((89, 61, 242, 106), (105, 89, 439, 246)),
    8: ((145, 105, 388, 189), (180, 151, 771, 411)),
    16: ((190, 151, 563, 308), (231, 200, 1180, 660)),
    32: ((228, 194, 890, 525), (261, 250, 1919, 1029)),
}
"""RTFx / 10 of greedy and beam search in all, then of their decoders: RNN-T, TDT."""


def rows(settings: Settings) -> Iterator[Row]:
    """Words and speed on speech, then speed at the papers' shapes."""
    yield from _speech(settings)
    for shape in settings.shapes:
        batches = settings.beam_batches
        windows = RandomWindows(shape, max(batches), encoder_frames(settings), settings.device)
        for kind in KINDS:
            run = RandomRun(settings, kind, shape, batches, windows)
            systems = run.systems((LABEL_LOOPING, ALSD), BEAM)
            yield from run.rows([s for s in systems if s.variant.projections == PRECOMPUTED])


def _speech(settings: Settings) -> list[Row]:
    speech = Speech(settings)
    lm = None if settings.train is None else PieceLm(settings, settings.train)
    systems: list[System | Unavailable] = []
    for one in [None] if lm is None else [None, lm]:
        for decoders, beams in (((LABEL_LOOPING, AES), (BEAM,)), ((ALSD,), sorted({*settings.beams, BEAM}))):
            streams = None if one is None else one.streams()
            selection = Selection(decoders, beams, (WHOLE,), settings.device, BATCH, 512, (TORCH,), streams)
            systems += penstock_systems(speech.checkpoint, selection)
            if settings.with_nemo:
                from benchmarks.nemo_decoders import NemoLm, nemo_systems

                theirs = None if one is None else NemoLm(one.write_as_nemo(), LM_WEIGHT)
                systems += nemo_systems(speech.checkpoint, selection, theirs)
    systems = [s for s in systems if s.variant.projections == PRECOMPUTED and s.variant.span == WHOLE]
    entries, rest = entries_of(systems, {"kind": "speech"}, list(speech.batches()), speech.tokenizer.decode)
    decoded = Streams(speech.audio_s, speech.encode, speech.references)
    return [*measured(entries, decoded, settings.rounds, settings.device), *rest]


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown, with the paper's figures."""
    speech = select(rows, kind="speech")
    yield (
        f"Table 1, with {BATCH} streams and a beam of {BEAM}: WER in % and RTFx in all; the paper's are of SPGI with "
        f"models of 1,000 (RNN-T) and 24,000 hours (TDT).\n\n{_table_1(speech)}"
    )
    yield (
        f"Table 2: RTFx of ALSD++ with a beam of {BEAM}, with the encoder or the decoder alone, and its speed relative "
        "to greedy search and to NeMo.\n\n"
        f"{_table_2(rows)}"
    )


def _table_1(speech: Sequence[Row]) -> str:
    lines = []
    for name, decoder, published in _ERRORS:
        cells = []
        for by in (PENSTOCK, NEMO):
            found = [
                _best(speech, by=by, decoder=decoder, beam=None if decoder == LABEL_LOOPING else BEAM, has_lm=lm)
                for lm in (False, True)
            ]
            cells.append(", ".join(f"{wer_percent(one):.2f}" if one else "-" for one in found))
            cells.append(", ".join(three_digits(total_rtfx(one)) if one else "-" for one in found))
        lines += lines_of(name, _LM, [*published, *cells])
    head = ["", "paper, RNN-T: WER %", "RTFx", "TDT: WER %", "RTFx", "here, TDT: WER %", "RTFx", "NeMo, TDT: WER %",
            "RTFx"]  # fmt: skip
    return markdown_table(head, lines, left=1)


def _table_2(rows: Sequence[Row]) -> str:
    lines = []
    for kind in KINDS:
        of_kind = select(rows, kind=kind)
        for shape, batch in fewest_and_most_streams(of_kind):
            case = {"shape": shape, "batch": batch}
            greedy, beam, nemo = (
                _best(of_kind, by=by, decoder=decoder, **case)
                for by, decoder in ((PENSTOCK, LABEL_LOOPING), (PENSTOCK, ALSD), (NEMO, ALSD))
            )
            published = "-"
            if shape == "114M" and batch in _BATCHES:
                full_greedy, full_beam, greedy_alone, beam_alone = _BATCHES[batch][kind == TDT]
                published = f"{full_beam / full_greedy:.2f}, {beam_alone / greedy_alone:.2f}"
            cells = [both(beam), published, ratio(beam, greedy), ratio(beam, nemo)]
            lines += lines_of(f"{kind.upper()} {shape}-{batch}", ("in all", "decoder"), cells)
    return markdown_table(["", "RTFx", "to greedy: paper", "here", "to NeMo"], lines, left=1)


def _best(rows: Sequence[Row], **case: object) -> Row | None:
    """The one with the best mode of CUDA graphs, without fused kernels."""
    modes = ("full_graph", "no_while_loops", "graphs", "no_graphs")
    return next(filter(None, (first(rows, driver=mode, kernels=TORCH, **case) for mode in modes)), None)
