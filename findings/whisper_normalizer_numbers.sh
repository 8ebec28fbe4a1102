#!/usr/bin/env bash
# Expected: Whisper's English normalizer converts each spoken number; a full stop or comma between two of them stays
#   a boundary.
# Seen: it removes the punctuation first. "Gate four. Five minutes" becomes "gate 45 minutes", and a hypothesis
#   with digits, "Gate 4. 5 minutes", becomes "gate 4 5 minutes": 2 edits for equal words.
# Hurts: WER of leaderboards and of models that write digits: the same words differ by how they are written,
#   and lists of numbers count as one word.
# Versions: whisper-normalizer 0.1.15 (the rules of openai-whisper), jiwer 4.0.0.
# Source: EnglishTextNormalizer.__call__() in whisper_normalizer/english.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile whisper-normalizer==0.1.15 jiwer==4.0.0
"$work/venv/bin/python" - <<'EOF'
import importlib.metadata

import jiwer
from whisper_normalizer.english import EnglishTextNormalizer

print("whisper-normalizer", importlib.metadata.version("whisper-normalizer"))
normalize = EnglishTextNormalizer()
rows = [
    ("We scored five. Three of them were late.", "We scored 5. 3 of them were late."),
    ("Gate four. Five minutes left.", "Gate 4. 5 minutes left."),
    ("At ten, twenty people came.", "At 10, 20 people came."),
]
edits = []
for reference, hypothesis in rows:
    result = jiwer.process_words(normalize(reference), normalize(hypothesis))
    edits.append(result.substitutions + result.deletions + result.insertions)
    print(f"{reference!r} -> {normalize(reference)!r}")
    print(f"{hypothesis!r} -> {normalize(hypothesis)!r}, {edits[-1]} edits")
unchanged = [normalize(reference) for reference, _ in rows] == [
    "we scored 53 of them were late", "gate 45 minutes left", "at 1020 people came"
] and min(edits) >= 1  # fmt: skip
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
