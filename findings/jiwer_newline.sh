#!/usr/bin/env bash
# Expected: any white space separates words, as in str.split().
# Seen: jiwer's default transform splits at the space character alone. A single newline, tab or no-break space joins
#   two words into one that is always wrong; a newline beside a space does not, since runs of white space are merged.
# Hurts: WER of text from SRT and VTT cues or wrapped files: 4 edits in 8 words where there is no error.
# Versions: jiwer 4.0.0.
# Source: RemoveMultipleSpaces and ReduceToListOfListOfWords in jiwer/transforms.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -qq --no-compile jiwer==4.0.0
"$work/venv/bin/python" - <<'EOF'
import importlib.metadata

import jiwer

print("jiwer", importlib.metadata.version("jiwer"))
reference = "turn left at the light and then stop"
wer = {}
for name, hypothesis in {
    "one line": reference,
    "cue of two lines": "turn left at the\nlight and then stop",
    "cue of three lines": "turn left\nat the light\nand then stop",
    "newline after a space": "turn left at the \nlight and then stop",
    "no-break space": "turn left at the\u00a0light and then stop",
}.items():
    result = jiwer.process_words(reference, hypothesis)
    wer[name] = result.wer
    print(f"{name}: WER {result.wer:.3f}, {result.substitutions} substitutions, {result.deletions} deletions")
unchanged = list(wer.values()) == [0, 2 / 8, 4 / 8, 0, 2 / 8]
print("as described" if unchanged else "the behaviour has changed")
raise SystemExit(not unchanged)
EOF
