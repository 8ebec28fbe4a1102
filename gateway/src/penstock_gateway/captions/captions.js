// The live captions page: microphone and files in, captions out. Speaks to the server through realtime.js only.
import {RealtimeSession} from "./realtime.js";

const RATE_HZ = 24000;
const $ = (id) => document.getElementById(id);
const socketUrl = new URL("v1/realtime?intent=transcription", location.href);
socketUrl.protocol = location.protocol === "https:" ? "wss:" : "ws:";

let session = null; // the RealtimeSession of the microphone
let stopMicrophone = null; // ends the recording; null while the microphone is off
let startedAt = 0; // performance.now() of the first sample of the microphone
let latencyMs = null;

// ---- settings

const stored = JSON.parse(localStorage.getItem("captions") ?? "{}");
$("phrases").value = stored.phrases ?? "";
$("pause").value = stored.pause ?? "800";
$("speakers").checked = stored.speakers ?? false;
$("figures").checked = stored.figures ?? false;
let secret = null; // {value, expiresAt} of this page, where the server has keys

const phrases = () => $("phrases").value.split("\n").map((line) => line.trim()).filter(Boolean);

function settings() {
  const transcription = {keywords: phrases()};
  if ($("model").value) transcription.model = $("model").value;
  if ($("speakers").checked) transcription.speakers = "on";
  if ($("figures").checked) transcription.numbers = "figures";
  return {
    type: "transcription",
    include: ["item.input_audio_transcription.interim", "item.input_audio_transcription.words"],
    audio: {
      input: {
        format: {type: "audio/pcm", rate: RATE_HZ},
        transcription,
        turn_detection: {type: "server_vad", silence_duration_ms: Number($("pause").value)},
      },
    },
  };
}

const apiKey = () => $("key").value.trim();
const bearer = (token) => (token ? {Authorization: `Bearer ${token}`} : {});

// A client secret of this page, where the server has keys: a page must not put a key into a WebSocket's address.
async function clientSecret() {
  const key = apiKey();
  if (!key) return null;
  if (secret && secret.expiresAt > Date.now() / 1000 + 10) return secret.value;
  const response = await request("v1/realtime/client_secrets", {
    method: "POST",
    headers: {...bearer(key), "Content-Type": "application/json"},
    body: JSON.stringify({expires_after: {anchor: "created_at", seconds: 600}}),
  });
  if (!response.ok) throw await failure(response);
  const {value, expires_at: expiresAt} = await response.json();
  secret = {value, expiresAt};
  return value;
}

// Why the server rejected the WebSocket: a script cannot read that from the socket itself.
async function refusal() {
  const used = secret?.value;
  try {
    const response = await request("v1/realtime", {cache: "no-store", headers: bearer(used ?? apiKey())});
    if (response.status === 401 && used) { // such as by a server that was started again: the key makes another one
      secret = null;
      return new Error("The client secret has expired.");
    }
    return response.ok ? new Error("The connection was lost.") : await failure(response);
  } catch (error) {
    return error;
  }
}

function request(path, options) {
  return fetch(new URL(path, location.href), options).catch(() => {
    throw new Error("The server cannot be reached.");
  });
}

async function failure(response) {
  if (response.status === 401) {
    const hasKey = apiKey() !== "";
    $("key-row").hidden = false;
    openPanel(true);
    $("key").focus();
    return fatal(hasKey ? "The server does not accept this API key." : "This server needs an API key.");
  }
  if (response.status === 429) return new Error("The server is full.");
  const {error} = await response.json().catch(() => ({error: {message: `The server answers ${response.status}.`}}));
  return response.status < 500 ? fatal(error.message) : new Error(error.message);
}

function fatal(message) {
  return Object.assign(new Error(message), {fatal: true});
}

async function listModels() {
  const response = await request("v1/models", {headers: bearer(apiKey())}).catch(() => null);
  if (!response?.ok) return;
  const {data} = await response.json();
  $("model").replaceChildren(...data.map(({id}) => new Option(id)));
  $("model-row").hidden = data.length < 2;
  const live = new Map(data.map((model) => [model.id, model.live]));
  $("model").onchange = () => { // the microphone is for models that take live audio
    const takesLive = live.get($("model").value) !== false;
    $("microphone").hidden = $("speak").hidden = !takesLive;
  };
  $("model").onchange();
}

// ---- a session

function begin() {
  subtitles = null;
  session = new RealtimeSession(socketUrl, {settings, secret: clientSecret, refusal}, {
    state: showState,
    text: showText,
    final: addFinal,
    dropped: hideInterim,
    failed: (message) => {
      showMessage(message);
      end();
    },
  });
  session.open();
  return session;
}

// No more audio. What was said is still written.
async function finish() {
  const finished = session;
  if (!finished) return;
  showState("finishing");
  await finished.finish();
  if (session === finished) end();
}

function end() {
  stopMicrophone?.();
  session?.close();
  session = null;
  hideInterim();
  $("latency").hidden = true;
  showState("idle");
}

// ---- microphone

async function startMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorklet) {
    const why = window.isSecureContext ? "This browser has no microphone for pages." : "Browsers give the microphone to pages with https or on localhost only.";
    return showMessage(`${why} You can still drop a recording.`);
  }
  const audio = {channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false};
  let stream;
  let context;
  pressed(true);
  try {
    stream = await navigator.mediaDevices.getUserMedia({audio});
    context = new AudioContext();
    await context.audioWorklet.addModule(new URL("worklet.js", import.meta.url));
    await context.resume();
  } catch (error) {
    pressed(false);
    stream?.getTracks().forEach((track) => track.stop());
    context?.close();
    return showMessage(microphoneError(error));
  }
  clearMessage();
  begin();
  const capture = new AudioWorkletNode(context, "capture");
  const meter = new AnalyserNode(context, {fftSize: 1024});
  // Up to the speakers, which get silence: some browsers run only what leads there.
  const source = new MediaStreamAudioSourceNode(context, {mediaStream: stream});
  source.connect(meter).connect(capture).connect(context.destination);
  const drawing = drawLevel(meter);
  let wakeLock = null;
  navigator.wakeLock?.request("screen").then((lock) => { wakeLock = lock; }, () => {});
  startedAt = 0;
  capture.port.onmessage = ({data}) => {
    if (data === null) { // the last piece has come
      context.close();
      return finish();
    }
    if (data.length === 0) return;
    startedAt ||= performance.now() - (data.length / RATE_HZ) * 1000;
    session?.push(data);
  };
  stopMicrophone = () => {
    stopMicrophone = null;
    pressed(false);
    cancelAnimationFrame(drawing.frame);
    drawing.clear();
    wakeLock?.release();
    stream.getTracks().forEach((track) => track.stop());
    capture.port.postMessage("stop");
  };
  stream.getAudioTracks()[0].onended = () => stopMicrophone?.();
}

function microphoneError({name, message}) {
  return {
    NotAllowedError: "The microphone is blocked. Allow it for this page in the browser's settings, then try again.",
    NotFoundError: "No microphone was found. Connect one, or drop a recording.",
    NotReadableError: "The microphone is in use by another program.",
  }[name] ?? `The microphone does not start: ${message}`;
}

function pressed(isOn) {
  $("microphone").setAttribute("aria-pressed", String(isOn));
  $("microphone").setAttribute("aria-label", isOn ? "Stop the microphone" : "Start the microphone");
  $("file").disabled = isOn;
}

// A ring around the button that follows the loudness.
function drawLevel(meter) {
  const canvas = $("level");
  const pen = canvas.getContext("2d");
  const samples = new Float32Array(meter.fftSize);
  const drawing = {frame: 0, clear: () => pen.clearRect(0, 0, canvas.width, canvas.height)};
  const draw = () => {
    meter.getFloatTimeDomainData(samples);
    const rms = Math.sqrt(samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length);
    const level = Math.max(0, Math.min(1, 1 + Math.log10(rms + 1e-6) / 2.5));
    drawing.clear();
    pen.globalAlpha = 0.35;
    pen.fillStyle = getComputedStyle(canvas).color;
    pen.beginPath();
    pen.arc(88, 88, 62 + 25 * level, 0, 2 * Math.PI);
    pen.fill();
    drawing.frame = requestAnimationFrame(draw);
  };
  draw();
  return drawing;
}

// ---- files: uploaded as they are, so that any model takes them and the server reads their format

let upload = null; // the XMLHttpRequest that runs; fetch tells no progress of an upload
let subtitles = null; // {name, text} of the last file

async function transcribe(file) {
  if (session || upload) return showMessage("Stop the running captions first.");
  clearMessage();
  const form = new FormData();
  form.append("file", file);
  form.append("model", $("model").value);
  form.append("response_format", "verbose_json");
  form.append("timestamp_granularities[]", "segment");
  if ($("speakers").checked) form.append("speakers", "on");
  if ($("figures").checked) form.append("numbers", "figures");
  form.append("chunking_strategy[silence_duration_ms]", $("pause").value);
  for (const phrase of phrases()) form.append("keywords[]", phrase);
  running(true);
  try {
    const response = await send(form);
    const {segments, remarks} = await response.json();
    $("finals").replaceChildren();
    for (const {start, text, speaker} of segments) addFinal(null, text, start * 1000, [{text, speaker}]);
    subtitles = {name: `${file.name.replace(/\.[^.]*$/, "")}.srt`, text: srt(segments)};
    if (!segments.length) showMessage(`No words were recognized in ${file.name}.`);
    else if (remarks.length) showMessage(`${file.name}: ${remarks.map(({text}) => text).join("; ")}`);
  } catch (error) {
    if (error.name !== "AbortError") showMessage(`${file.name}: ${error.message}`);
  }
  running(false);
}

// Resolves with the reply; an error has its reason.
function send(form) {
  return new Promise((resolve, reject) => {
    upload = new XMLHttpRequest();
    upload.open("POST", new URL("v1/audio/transcriptions", location.href));
    if (apiKey()) upload.setRequestHeader("Authorization", `Bearer ${apiKey()}`);
    upload.upload.onprogress = ({loaded, total}) => {
      if (loaded < total) $("progress").value = loaded / total;
      else $("progress").removeAttribute("value"); // how far the recognition is, is not reported
      showState(loaded < total ? "uploading" : "transcribing");
    };
    upload.onerror = () => reject(new Error("The server cannot be reached."));
    upload.onabort = () => reject(new DOMException("", "AbortError"));
    upload.onload = async () => {
      const reply = new Response(upload.responseText, {status: upload.status});
      const failed = upload.status >= 400 || "error" in JSON.parse(upload.responseText || "{}");
      if (failed) reject(await failure(reply));
      else resolve(reply);
    };
    upload.send(form);
  });
}

function running(isOn) {
  if (!isOn) upload = null;
  $("microphone").disabled = isOn;
  $("file").lastChild.textContent = isOn ? "Cancel" : "File";
  $("progress").hidden = !isOn;
  showState(isOn ? "uploading" : "idle");
}

function srt(segments) {
  const time = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 23).replace(".", ",");
  const said = ({text, speaker}) => (speaker ? `${speaker}: ${text}` : text);
  const cue = (part, index) =>
    `${index + 1}\n${time(part.start)} --> ${time(Math.max(part.end, part.start + 1))}\n${said(part)}\n`;
  return segments.map(cue).join("\n");
}

// ---- what is shown

const STATES = {
  idle: ["Ready", "idle"],
  connecting: ["Connecting", "busy"],
  uploading: ["Uploading", "busy"],
  transcribing: ["Transcribing", "busy"],
  finishing: ["Finishing", "busy"],
  reconnecting: ["Reconnecting", "trouble"],
};

function showState(name, detail) {
  const [text, state] = STATES[name] ?? ["Listening", "live"];
  $("status").textContent = text;
  $("status").dataset.state = state;
  if (name === "reconnecting" && detail) showMessage(detail);
  if (name === "live") clearMessage();
}

function showMessage(text) {
  $("message-text").textContent = text;
  $("message").hidden = false;
}

function clearMessage() {
  $("message").hidden = true;
}

function showText(id, stable, interim, audioEndMs) {
  $("empty").hidden = true;
  const sure = document.createElement("span");
  sure.className = "stable";
  sure.textContent = stable;
  follow(() => {
    $("interim").replaceChildren(sure, interim);
    $("interim").hidden = false;
  });
  if (stopMicrophone && audioEndMs !== undefined) showLatency(performance.now() - startedAt - audioEndMs);
}

// A running mean over about ten results, so that the figure can be read.
function showLatency(ms) {
  latencyMs = latencyMs === null || $("latency").hidden ? ms : 0.9 * latencyMs + 0.1 * ms;
  $("latency").textContent = `${Math.max(0, Math.round(latencyMs / 10) * 10)} ms`;
  $("latency").hidden = false;
}

// `turns`: {text, speaker}, where speakers are told apart; each has the color of its speaker.
function addFinal(id, text, startMs, turns = [{text}]) {
  const seconds = Math.floor((startMs ?? 0) / 1000);
  const stamp = document.createElement("time");
  stamp.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  const words = document.createElement("span");
  words.append(...turns.map(colored).flatMap((part, index) => (index ? [" ", part] : [part])));
  const line = document.createElement("li");
  line.append(stamp, words);
  $("empty").hidden = true;
  follow(() => {
    $("finals").append(line);
    hideInterim();
  });
  $("save").disabled = $("clear").disabled = false;
}

function colored({text, speaker}) {
  if (!speaker) return text;
  const part = document.createElement("span");
  part.className = "speaker";
  part.dataset.speaker = speaker;
  part.title = `Speaker ${speaker}`;
  part.textContent = text;
  return part;
}

function hideInterim() {
  $("interim").replaceChildren();
  $("interim").hidden = true;
}

// Changes the captions and keeps their end in view, unless the reader has scrolled up.
function follow(change) {
  const page = document.scrollingElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 120;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

function openPanel(isOpen) {
  $("panel").hidden = !isOpen;
  $("settings").setAttribute("aria-expanded", String(isOpen));
}

// ---- buttons

$("microphone").onclick = () => {
  if (stopMicrophone) stopMicrophone();
  else if (!session && $("microphone").getAttribute("aria-pressed") === "false") startMicrophone();
};
$("file").onclick = () => (upload ? upload.abort() : $("chooser").click());
$("chooser").onchange = () => {
  const [file] = $("chooser").files;
  $("chooser").value = "";
  if (file) transcribe(file);
};
$("clear").onclick = () => {
  $("finals").replaceChildren();
  subtitles = null;
  $("save").disabled = $("clear").disabled = true;
  $("empty").hidden = Boolean(session);
};
$("save").onclick = () => {
  const texts = [...$("finals").children].map((line) => line.lastChild.textContent);
  const {name, text} = subtitles ?? {name: "captions.txt", text: `${texts.join("\n")}\n`};
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "text/plain"}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
$("settings").onclick = () => openPanel($("panel").hidden);
$("panel").onsubmit = (event) => {
  event.preventDefault();
  openPanel(false);
  localStorage.setItem("captions", JSON.stringify({
    phrases: $("phrases").value, pause: $("pause").value,
    speakers: $("speakers").checked, figures: $("figures").checked,
  }));
  secret = null;
  clearMessage();
  session?.configure();
};
$("key").onchange = listModels;
$("message-close").onclick = clearMessage;
document.onkeydown = (event) => event.key === "Escape" && openPanel(false);

let dragDepth = 0; // enter and leave events of nested elements
const hasFile = (event) => event.dataTransfer?.types.includes("Files");
document.ondragenter = (event) => { if (hasFile(event)) $("drop").hidden = ++dragDepth === 0; };
document.ondragleave = (event) => { if (hasFile(event)) $("drop").hidden = --dragDepth <= 0; };
document.ondragover = (event) => event.preventDefault();
document.ondrop = (event) => {
  event.preventDefault();
  dragDepth = 0;
  $("drop").hidden = true;
  const [file] = event.dataTransfer.files;
  if (file) transcribe(file);
};

listModels();
