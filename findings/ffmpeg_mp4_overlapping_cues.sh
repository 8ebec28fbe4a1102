#!/usr/bin/env bash
# Expected: subtitles put into an MP4 (`-c:s mov_text`) keep start and end of each cue, as in SRT, WebVTT and Matroska.
# Seen: in MP4 one subtitle lasts until the next begins. Where two speakers overlap, the first cue ends when the second
#   starts, and its end is lost, without a warning.
# Hurts: transcripts of conversations: the longer turn disappears from the screen at the first "yes" of the other.
# Versions: Debian's ffmpeg 5.1. The same cues through Matroska are unchanged.
# Source: seen in the output.
set -euo pipefail
command -v ffmpeg >/dev/null || { echo "needs the Debian package ffmpeg" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ffmpeg -version | sed -n 1p
cat >talk.srt <<'EOF'
1
00:00:01,000 --> 00:00:09,000
A: so we should meet on Monday at the station

2
00:00:03,000 --> 00:00:03,500
B: yes

EOF
ffmpeg -v error -i talk.srt -c:s mov_text talk.mp4
ffmpeg -v error -i talk.srt -c:s srt talk.mkv
for container in mkv mp4; do
  ffmpeg -v error -i talk.$container $container.srt
  echo "$container: $(grep -e '-->' $container.srt | paste -sd ' ' | sed 's/00 00:/00, 00:/')"
done
is_kept=$(grep -c '00:00:01,000 --> 00:00:09,000' mkv.srt || true)
is_cut=$(grep -c '00:00:01,000 --> 00:00:03,000' mp4.srt || true)
unchanged=$((is_kept == 1 && is_cut == 1))
if ((unchanged)); then echo "as described"; else echo "the behaviour has changed"; fi
exit $((1 - unchanged))
