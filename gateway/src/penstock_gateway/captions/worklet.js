// Captures the microphone: mono, 24 kHz, PCM16, in pieces of 100 ms. Runs in the audio thread and knows no page and
// no network. It resamples itself, because Firefox cannot open a microphone in an AudioContext of another rate.

const OUTPUT_RATE_HZ = 24000;
const PIECE_SAMPLES = OUTPUT_RATE_HZ / 10;
const ZERO_CROSSINGS = 16;
const PHASES = 512;

// A band-limited interpolator: a sinc with a Hann window, tabulated at PHASES positions per input sample.
export class Resampler {
  constructor(inputRateHz, outputRateHz) {
    this.step = inputRateHz / outputRateHz; // input samples per output sample
    const cutoff = 0.95 * Math.min(1, 1 / this.step); // of the input's Nyquist frequency
    this.reach = Math.ceil(ZERO_CROSSINGS / cutoff); // input samples on either side
    this.table = new Float32Array(this.reach * PHASES + 2);
    for (let i = 0; i < this.table.length; i++) {
      const distance = i / PHASES; // in input samples
      const x = Math.PI * distance * cutoff;
      const window = distance < this.reach ? 0.5 + 0.5 * Math.cos((Math.PI * distance) / this.reach) : 0;
      this.table[i] = cutoff * window * (x === 0 ? 1 : Math.sin(x) / x);
    }
    this.history = new Float32Array(2 * this.reach); // begins with silence
    this.position = 2 * this.reach; // of the next output sample, in input samples from the start of the history
  }

  // All output samples that the input so far allows; the last `reach` input samples wait for the next call.
  process(input) {
    const samples = new Float32Array(this.history.length + input.length);
    samples.set(this.history);
    samples.set(input, this.history.length);
    const output = [];
    while (this.position + this.reach < samples.length) {
      const first = Math.ceil(this.position - this.reach);
      const last = Math.floor(this.position + this.reach);
      let sum = 0;
      for (let i = first; i <= last; i++) {
        const at = Math.abs(i - this.position) * PHASES;
        const left = Math.floor(at);
        sum += samples[i] * (this.table[left] + (at - left) * (this.table[left + 1] - this.table[left]));
      }
      output.push(sum);
      this.position += this.step;
    }
    const drop = Math.min(Math.floor(this.position) - this.reach, samples.length - 2 * this.reach);
    this.history = samples.slice(drop);
    this.position -= drop;
    return output;
  }
}

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, OUTPUT_RATE_HZ);
    this.piece = new Int16Array(PIECE_SAMPLES);
    this.filled = 0;
    this.running = true;
    this.port.onmessage = () => { // stop: hand over the rest
      this.add(this.resampler.process(new Float32Array(this.resampler.reach)));
      this.port.postMessage(this.piece.slice(0, this.filled));
      this.port.postMessage(null);
      this.running = false;
    };
  }

  add(samples) {
    for (const sample of samples) {
      this.piece[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
      if (this.filled === PIECE_SAMPLES) {
        this.port.postMessage(this.piece, [this.piece.buffer]);
        this.piece = new Int16Array(PIECE_SAMPLES);
        this.filled = 0;
      }
    }
  }

  process([channels]) {
    if (!this.running) return false;
    if (channels.length === 0) return true; // no input is connected yet
    let mono = channels[0];
    if (channels.length > 1) {
      mono = new Float32Array(mono.length);
      for (const channel of channels) for (let i = 0; i < mono.length; i++) mono[i] += channel[i] / channels.length;
    }
    this.add(this.resampler.process(mono));
    return true;
  }
}

registerProcessor("capture", Capture);
