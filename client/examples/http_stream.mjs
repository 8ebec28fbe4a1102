// Streams a WAV file (16 kHz, mono, 16 bit) over HTTP; Node 18 or later, no packages. Prints text as it comes.
// node http_stream.mjs http://localhost:8000 speech.wav
import { readFileSync } from "node:fs";

const REQUEST_SAMPLES = 8000; // 0.5 s
const [server, path] = process.argv.slice(2);
if (!path) throw new Error("usage: node http_stream.mjs http://HOST:PORT FILE.wav");

// One request: JSON header, then binary samples. Returns the outputs by name.
async function infer(samples, parameters) {
  const audio = { name: "AUDIO", shape: [1, samples.length], datatype: "FP32" };
  audio.parameters = { binary_data_size: 4 * samples.length };
  const header = Buffer.from(JSON.stringify({ inputs: [audio], parameters }));
  const body = Buffer.concat([header, Buffer.from(samples.buffer)]);
  const headers = { "Inference-Header-Content-Length": String(header.length) };
  const response = await fetch(`${server}/v2/models/asr/infer`, { method: "POST", body, headers });
  const reply = await response.json();
  if (reply.error) throw new Error(reply.error);
  return Object.fromEntries(reply.outputs.map((output) => [output.name, output.data]));
}

const file = readFileSync(path);
const pcm = file.subarray(file.indexOf("data") + 8); // behind the chunk's name and size
const stream = { sequence_id: process.pid, sequence_start: true };
for (let at = 0; at < pcm.length; at += 2 * REQUEST_SAMPLES) {
  const part = pcm.subarray(at, at + 2 * REQUEST_SAMPLES);
  const samples = Float32Array.from({ length: part.length >> 1 }, (_, i) => part.readInt16LE(2 * i) / 32768);
  console.log((await infer(samples, stream)).TEXT[0]);
  stream.sequence_start = false;
}
console.log("final:", (await infer(new Float32Array(0), { ...stream, sequence_end: true })).TEXT[0]);
