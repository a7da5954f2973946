export interface Unzipped {
  name: string;
  text: string;
}

const FILE = 0x04034b50;

/** The texts of a ZIP of the server, which tells sizes before each file, and stores or deflates it. */
export async function unzip(zip: Blob): Promise<Unzipped[]> {
  const view = new DataView(await zip.arrayBuffer());
  const found: Unzipped[] = [];
  for (let at = 0; at + 30 <= view.byteLength && view.getUint32(at, true) === FILE;) {
    const start = at + 30;
    const named = start + view.getUint16(at + 26, true);
    const from = named + view.getUint16(at + 28, true);
    const to = from + view.getUint32(at + 18, true);
    const data = zip.slice(from, to);
    const isDeflated = view.getUint16(at + 8, true) === 8;
    const plain = isDeflated ? data.stream().pipeThrough(new DecompressionStream("deflate-raw")) : data;
    found.push({ name: await zip.slice(start, named).text(), text: await new Response(plain).text() });
    at = to;
  }
  return found;
}
