// Streams a WAV file to a gateway with the package ws; wss:// and a key work as well (see realtime_openai.mjs).
// npm ci && node realtime_ws.mjs ws://localhost:8080 speech.wav [KEY]
import WebSocket from "ws";
import { transcribe } from "./transcription.mjs";

const [gateway, path, key = "none"] = process.argv.slice(2);
if (!path) throw new Error("usage: node realtime_ws.mjs ws://HOST:PORT FILE.wav [KEY]");

const headers = { Authorization: `Bearer ${key}` };
const socket = new WebSocket(`${gateway}/v1/realtime?intent=transcription`, { headers });
const receive = transcribe(path, (event) => socket.send(JSON.stringify(event)), () => socket.close(1000));
socket.on("message", (message) => receive(JSON.parse(message)));
socket.on("close", (code, reason) => code > 1001 && console.error(`closed: ${code} ${reason}`));
