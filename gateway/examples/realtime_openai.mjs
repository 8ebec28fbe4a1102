// Streams a WAV file to a gateway with OpenAI's package, whose Realtime class always speaks TLS.
// npm ci && NODE_EXTRA_CA_CERTS=cert.pem node realtime_openai.mjs https://localhost:8080 speech.wav [KEY]
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { transcribe } from "./transcription.mjs";

const [gateway, path, apiKey = "none"] = process.argv.slice(2);
if (!path) throw new Error("usage: node realtime_openai.mjs https://HOST:PORT FILE.wav [KEY]");

const client = new OpenAI({ baseURL: `${gateway}/v1`, apiKey });
const connection = new OpenAIRealtimeWS({ model: "gpt-4o-transcribe" }, client);
const receive = transcribe(path, (event) => connection.send(event), () => connection.close());
connection.on("event", receive);
connection.on("error", (error) => { throw error; });
