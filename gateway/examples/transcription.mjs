// A Realtime transcription session that sends a WAV file (mono, 16 bit, 8, 16 or 24 kHz) in real time. Prints deltas as
// they come, and each segment when it is final. `send` sends an event, `close` ends the connection. Returns the handler
// of the server's events.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const PIECES_PER_SECOND = 10;

export function transcribe(path, send, close) {
  const file = readFileSync(path);
  const rate = file.readUInt32LE(24);
  const pcm = file.subarray(file.indexOf("data") + 8); // behind the chunk's name and size
  const format = { type: "audio/pcm", rate };
  const turn_detection = { type: "server_vad", silence_duration_ms: 800 }; // null: only a commit ends a segment
  const transcription = { model: "gpt-4o-transcribe" };
  let endMs = 0; // of the last segment
  let isSent = false;

  async function sendAudio() {
    for (let at = 0, step = (2 * rate) / PIECES_PER_SECOND; at < pcm.length; at += step) {
      send({ type: "input_audio_buffer.append", audio: pcm.subarray(at, at + step).toString("base64") });
      await sleep(1000 / PIECES_PER_SECOND);
    }
    isSent = true;
    send({ type: "input_audio_buffer.commit" }); // completes the last segment, which may be empty
  }

  function complete(transcript) {
    if (transcript) console.log(`\nfinal: ${transcript}`);
    if (isSent && (!transcript || endMs > (500 * pcm.length) / rate - 100)) close(); // not an earlier pause
  }

  const handlers = {
    "session.created": () =>
      send({
        type: "session.update",
        session: { type: "transcription", audio: { input: { format, transcription, turn_detection } } },
      }),
    "session.updated": sendAudio,
    "conversation.item.input_audio_transcription.delta": ({ delta }) => process.stdout.write(delta),
    "input_audio_buffer.speech_stopped": ({ audio_end_ms }) => (endMs = audio_end_ms),
    "conversation.item.input_audio_transcription.completed": ({ transcript }) => complete(transcript),
    error: ({ error }) => {
      throw new Error(`${error.code}: ${error.message}`);
    },
  };
  return (event) => handlers[event.type]?.(event);
}
