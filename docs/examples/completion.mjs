// Streams POST /completion for a web page or for Node: for await (const text of completion("Hello")) ...
//
//   node completion.mjs http://127.0.0.1:8080 "Once upon a time"
//
// Options are the fields of /completion (n_predict, temperature, stop, model ...). An AbortSignal ends the generation.

export async function* completion(prompt, options = {}, { url = "", key = "", signal } = {}) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const body = JSON.stringify({ n_predict: 256, ...options, prompt, stream: true });
  const answer = await fetch(`${url}/completion`, { method: "POST", headers, body, signal });
  if (!answer.ok) {
    throw new Error((await answer.json()).error.message);
  }
  let rest = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    const records = (rest + piece).split("\n\n");
    rest = records.pop();
    for (const record of records) {
      if (record.startsWith("error: ")) {
        throw new Error(JSON.parse(record.slice(7)).message);
      }
      if (!record.startsWith("data: ") || record === "data: [DONE]") {
        continue; // a comment keeps the connection open
      }
      const event = JSON.parse(record.slice(6));
      if (event.error) {
        throw new Error(event.error.message);
      }
      yield event.content;
    }
  }
}

if (typeof process !== "undefined" && process.argv[1]?.endsWith("completion.mjs")) {
  const [url, prompt, options = "{}"] = process.argv.slice(2);
  for await (const text of completion(prompt, JSON.parse(options), { url })) {
    process.stdout.write(text);
  }
  process.stdout.write("\n");
}
