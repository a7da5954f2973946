/** 16-bit WAV with one channel, which every engine that transcribes reads. `samples` are from -1 to 1. */
export function wav(samples: Float32Array, rate: number): Blob {
  const size = samples.length * 2;
  const view = new DataView(new ArrayBuffer(44 + size));
  const name = (at: number, text: string) =>
    [...text].forEach((letter, place) => view.setUint8(at + place, letter.charCodeAt(0)));
  name(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  name(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * 2, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  name(36, "data");
  view.setUint32(40, size, true);
  samples.forEach((sample, at) => view.setInt16(44 + at * 2, Math.max(-1, Math.min(1, sample)) * 32767, true));
  return new Blob([view], { type: "audio/wav" });
}
