#!/usr/bin/env bash
# Expected: two speakers with the same start and end are both kept: annotation[segment] = "A", then = "B".
# Seen: without a track name both go to track "_" of that segment: B replaces A, and no time of A is left.
# Hurts: DER of references made from fixed windows, frames or one VAD for two channels: overlapped speech disappears
#   from the total, and a hypothesis that finds only B scores 0.
# Versions: pyannote.core 6.1.0, pyannote.metrics 4.2.0. annotation[segment, track] = label keeps both.
# Source: Annotation.__setitem__() in pyannote/core/annotation.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile pyannote.core==6.1.0 pyannote.metrics==4.2.0
"$work/venv/bin/python" -W ignore - <<'EOF'
import importlib.metadata

from pyannote.core import Annotation, Segment
from pyannote.metrics.diarization import DiarizationErrorRate

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyannote.core", "pyannote.metrics")))
turns = [(0, 10, "A"), (0, 10, "B"), (12, 20, "A")]
without_tracks, with_tracks, hypothesis = Annotation(), Annotation(), Annotation()
for number, (start, end, speaker) in enumerate(turns):
    without_tracks[Segment(start, end)] = speaker
    with_tracks[Segment(start, end), number] = speaker
    if (start, speaker) != (0, "A"):
        hypothesis[Segment(start, end)] = speaker  # misses A's first turn
totals = {}
for name, reference in {"without tracks": without_tracks, "with tracks": with_tracks}.items():
    parts = DiarizationErrorRate()(reference, hypothesis, detailed=True)
    totals[name] = (parts["total"], round(parts["diarization error rate"], 3))
    print(f"{name}: {len(list(reference.itertracks()))} tracks, speech {parts['total']:.0f} s, DER {totals[name][1]}")
unchanged = totals == {"without tracks": (18, 0.0), "with tracks": (28, 0.357)}
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
