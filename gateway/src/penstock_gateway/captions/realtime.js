// A transcription session over the Realtime protocol: a WebSocket that is opened again when it is lost. Knows no page
// and no microphone. Audio since the last final is kept and sent again on the next connection, so no word is missed.

const RATE_HZ = 24000;
const BUFFERED_BYTES = 256 * 1024;
const KEPT_PIECES = 300; // of 100 ms: longer is not sent again
const RETRY_MS = [300, 1000, 2000, 4000, 8000];
const ANSWER_MS = 8000;

export class RealtimeSession {
  // `settings`: () => the session's settings. `secret`: async () => a client secret or null. `refusal`: async () => the
  // error of a handshake that failed, `fatal` where another attempt makes no sense.
  // `handlers`: state(name, detail), text(itemId, stable, interim, audioEndMs),
  // final(itemId, text, startMs, turns), dropped(itemId), failed(message). Times count from the first sample of this object.
  constructor(url, {settings, secret, refusal}, handlers) {
    Object.assign(this, {url, settings, secret, refusal, handlers});
    this.kept = []; // {at, samples}: `at` is the sample number of the first one
    this.sent = 0; // of `kept`, pieces already on this connection
    this.samples = 0; // all samples given to push()
    this.items = new Map(); // id -> {text, startMs} of items that are not final yet
    this.attempts = 0;
    this.closing = false;
    this.ready = false;
    this.waiting = []; // those who wait for room in the socket's buffer
  }

  async open() {
    this.ready = false;
    this.handlers.state(this.attempts ? "reconnecting" : "connecting");
    let secret;
    try {
      secret = await this.secret();
    } catch (error) {
      return this.retry(error);
    }
    if (this.closing) return;
    const protocols = ["realtime"];
    if (secret) protocols.push(`openai-insecure-api-key.${secret}`);
    this.base = 0;
    let isOpen = false;
    const socket = new WebSocket(this.url, protocols);
    this.socket = socket;
    socket.onopen = () => { isOpen = true; };
    socket.onmessage = (message) => this.closing || this.receive(JSON.parse(message.data));
    socket.onclose = (event) => this.socket === socket && this.lost(event, isOpen);
  }

  // Samples: Int16Array. Resolves when the network has taken what was sent before.
  async push(samples) {
    this.kept.push({at: this.samples, samples});
    this.samples += samples.length;
    if (this.kept.length > KEPT_PIECES) this.forget(this.kept.length - KEPT_PIECES);
    this.flush();
    while (!this.closing && this.sent < this.kept.length && this.kept.length >= KEPT_PIECES / 2) {
      await new Promise((resolve) => this.waiting.push(resolve));
    }
  }

  // Sends what is kept while the socket's buffer has room.
  flush() {
    clearTimeout(this.timer);
    if (!this.ready) return;
    while (this.sent < this.kept.length && this.socket.bufferedAmount < BUFFERED_BYTES) {
      const {samples} = this.kept[this.sent++];
      this.send({type: "input_audio_buffer.append", audio: base64(samples)});
    }
    if (this.sent < this.kept.length) this.timer = setTimeout(() => this.flush(), 20);
    for (const resolve of this.waiting.splice(0)) resolve();
    if (this.ending && this.sent === this.kept.length && !this.committed) {
      this.committed = true;
      this.send({type: "input_audio_buffer.commit"});
    }
  }

  // Other settings from here on: the server ends the running caption and goes on with them.
  configure() {
    if (this.ready) this.send({type: "session.update", session: this.settings()});
  }

  // No more audio: resolves when all of it has its final text, or when that takes too long.
  finish() {
    if (this.samples === 0 || this.closing) return this.close();
    return new Promise((resolve) => {
      this.ending = resolve;
      this.flush();
      this.extend();
    }).then(() => this.close());
  }

  // The server's answer to the end is late only if nothing at all has come for a while.
  extend() {
    clearTimeout(this.deadline);
    if (this.ending) this.deadline = setTimeout(() => this.ending?.(), ANSWER_MS);
  }

  close() {
    this.closing = true;
    this.ready = false;
    this.ending = null;
    for (const timer of [this.timer, this.deadline, this.retrying]) clearTimeout(timer);
    for (const resolve of this.waiting.splice(0)) resolve();
    this.socket?.close(1000);
  }

  send(event) {
    this.socket.send(JSON.stringify(event));
  }

  receive(event) {
    this.extend();
    const handle = {
      "session.created": () => this.send({type: "session.update", session: this.settings()}),
      "session.updated": () => this.begin(),
      "input_audio_buffer.speech_started": () => this.item(event.item_id, event.audio_start_ms + this.base),
      "input_audio_buffer.speech_stopped": () => { this.item(event.item_id).endMs = event.audio_end_ms + this.base; },
      "conversation.item.input_audio_transcription.delta": () => this.delta(event),
      "conversation.item.input_audio_transcription.segment": () => this.item(event.item_id).turns.push(event),
      "conversation.item.input_audio_transcription.completed": () => this.completed(event),
      "conversation.item.input_audio_transcription.failed": () => this.drop(event.item_id),
      error: () => this.error(event.error),
    }[event.type];
    handle?.();
  }

  // A connection begins with the first piece that has no final text yet; its times count from there.
  begin() {
    if (this.ready) return; // the answer to configure()
    this.ready = true;
    this.sent = 0;
    this.committed = false;
    this.base = ((this.kept[0]?.at ?? this.samples) / RATE_HZ) * 1000;
    this.handlers.state("live");
    this.flush();
  }

  item(id, startMs) {
    this.attempts = 0; // the server recognizes
    if (!this.items.has(id)) {
      this.items.set(id, {text: "", startMs, endMs: undefined, turns: []});
      }
    return this.items.get(id);
  }

  delta(event) {
    const item = this.item(event.item_id);
    item.text += event.delta;
    const end = event.audio_end_ms === undefined ? undefined : event.audio_end_ms + this.base;
    this.handlers.text(event.item_id, item.text, event.interim ?? "", end);
  }

  completed(event) {
    const item = this.item(event.item_id);
    this.items.delete(event.item_id);
    const [first] = event.words ?? [];
    const startMs = first ? first.start * 1000 + this.base : item.startMs;
    const turns = item.turns.length ? item.turns : undefined; // of speakers
    if (event.transcript) this.handlers.final(event.item_id, event.transcript, startMs, turns);
    else this.handlers.dropped(event.item_id);
    if (item.endMs !== undefined) { // pieces that end before the segment's end are done
      const end = (item.endMs / 1000) * RATE_HZ;
      this.forget(this.kept.findIndex(({at, samples}) => at + samples.length > end));
    }
    const all = (this.samples / RATE_HZ) * 1000;
    if (this.committed && (!event.transcript || item.endMs > all - 100)) this.ending?.(); // not an earlier pause
  }

  forget(pieces) {
    if (pieces < 0) pieces = this.kept.length;
    this.kept.splice(0, Math.min(pieces, this.ready ? this.sent : this.kept.length));
    this.sent = Math.max(0, this.sent - pieces);
  }

  drop(id) {
    this.items.delete(id);
    this.handlers.dropped(id);
  }

  error(error) {
    this.reason = error.message;
    if (error.code === "input_audio_buffer_commit_empty") this.ending?.();
    else if (!this.ready) this.fail(error.message); // the settings were rejected
  }

  async lost(event, wasOpen) {
    if (this.closing) return;
    this.ready = false;
    for (const id of [...this.items.keys()]) this.drop(id);
    const isFull = event.reason.startsWith("STREAMS_EXHAUSTED");
    const closed = isFull ? "The server is full." : event.reason.replace(/^[A-Z_]+: /, "");
    const error = wasOpen ? new Error(closed || this.reason || "The connection was lost.") : await this.refusal();
    if (!this.closing) this.retry(error);
  }

  retry(error) {
    const wait = RETRY_MS[this.attempts++];
    if (error.fatal || wait === undefined) return this.fail(error.message || "The server cannot be reached.");
    this.handlers.state("reconnecting", error.message);
    this.retrying = setTimeout(() => this.open(), wait);
  }

  fail(message) {
    const ending = this.ending;
    this.close();
    this.handlers.failed(message);
    ending?.();
  }
}

function base64(samples) {
  const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}
