#!/usr/bin/env bash
# Runs targets of the Makefile in a clean clone of HEAD, with small arguments, and prints a table: target, exit status,
# seconds, the last line of output. Without names: all targets. Ends with status 1 if one failed, and keeps the clone.
#
# Usage: scripts/check_targets.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS MAKELEVEL
clone=$(mktemp -d)/penstock
git clone --quiet . "$clone"
cd "$clone"
logs=$clone.logs
mkdir "$logs"

# .PHONY names all targets, and `setup` and `oracle-setup` before what needs them; a NAME stands for its target.
names=$(sed -n 's/^\(benchmark\|trials\)-\([a-z-]\+\) = .*/\1=\2/p' Makefile | tr '\n' ' ')
all=$(sed -n 's/^\.PHONY: //p' Makefile)
read -ra targets <<<"${*:-${all/ trials / $names}}"
declare -A arguments=(
    [benchmark]="BENCHMARK_ARGS=--quick"
    [trials=gateway-attack]="TRIAL_ARGS='--seconds 4'"
    [loadtest]="STREAMS=2 MINUTES=0.2"
    [trials=soak]="STREAMS=2 MINUTES=1 TRIAL_ARGS='--max-growth 100000'" # a minute is all warm-up
    [capacity]="LOADTEST_ARGS='--first 1 --max 2 --trial-seconds 5 --confirm-seconds 5'"
    [benchmark=side-by-side]="BENCHMARK_ARGS='--quick --contexts 70,6'"
    [benchmark=side-by-side-large]="SIZES=2x512 BENCHMARK_ARGS='--quick --files 2'"
    [benchmark=papers]="BENCHMARK_ARGS='--quick --papers 000'"
    [trials=faults]="TRIAL_ARGS='--only restarted_server'"
    [train-demo]="AN4=$logs/an4 TRAIN_ARGS='--models rnnt --steps 2 --synthetic 0 --vocabulary 28'"
)

# The bundled utterances, laid out like the AN4 release; each is there once for training and once for testing.
make_an4() {
    .venv-oracle/bin/python - tests/data/an4 "$logs/an4" <<'PYTHON'
import json, sys
from pathlib import Path
import soundfile

data, release = map(Path, sys.argv[1:])
(release / "etc").mkdir(parents=True)
for part in ("train", "test"):
    ids, texts = [], []
    for line in (data / "manifest.jsonl").read_text().splitlines():
        entry = json.loads(line)
        name = f"{part}-{Path(entry['audio_filepath']).stem}"
        ids.append(f"{part}/{entry['speaker']}{'-train' * (part == 'train')}/{name}")
        texts.append(f"{entry['text']} ({name})")
        audio = release / "wav" / f"{ids[-1]}.wav"
        audio.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(audio, *soundfile.read(data / entry["audio_filepath"]))
    (release / f"etc/an4_{part}.fileids").write_text("\n".join(ids))
    (release / f"etc/an4_{part}.transcription").write_text("\n".join(texts))
PYTHON
}

run() { # TARGET: its exit status
    local status=0
    case $1 in
    serve)
        make setup || return
        timeout --signal=INT --kill-after=60 60 make serve || status=$?
        grep -q "server: ready after" "$logs/serve.log" && [ $status -eq 124 ] # 124: interrupted, and ended
        ;;
    *)
        [ "$1" != train-demo ] || { make oracle-setup && make_an4; } || return
        eval "make ${1/=/ NAME=} ${arguments[$1]:-}"
        ;;
    esac
}

failed=0
printf '%-30s %4s %7s  %s\n' target exit seconds "last line"
for target in "${targets[@]}"; do
    start=$SECONDS status=0
    run "$target" >"$logs/$target.log" 2>&1 || status=$? failed=1
    last=$(tr '\r' '\n' <"$logs/$target.log" | grep -v '^make: \|^[[:space:]]*$' | tail -n 1 || true)
    printf '%-30s %4s %7s  %.90s\n' "$target" $status $((SECONDS - start)) "$last"
done
changed=$(git status --porcelain)
[ -z "$changed" ] || { echo "The targets changed files of the repository:"; echo "$changed"; failed=1; }
[ $failed -ne 0 ] || { rm -rf "$(dirname "$clone")"; exit 0; }
echo "Logs: $logs"
exit 1
