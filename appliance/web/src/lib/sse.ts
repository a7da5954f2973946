/**
 * Server-sent events out of a fetched body: each record's data, however the bytes are cut. `called` is told its name
 * before, and `heard` of all that comes, also where it is no record.
 */
export async function* records(
  body: ReadableStream<Uint8Array>,
  { called, heard }: { called?: (name: string) => void; heard?: () => void } = {},
): AsyncGenerator<string> {
  const reader = body
    .pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>)
    .getReader();
  let rest = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard?.();
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("event:")) called?.(line.slice(6).trim());
      }
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
