/** What a captured request and its answer say, whichever of the APIs they are written for. Nothing here is trusted: a client wrote it. */
import { parsed } from "./ids";

export interface Turn {
  role: string;
  text: string;
}
export interface TimePart {
  name: "wait" | "load" | "prompt" | "answer" | "tool" | "fallback" | "rest";
  /** The tool's name, or what became of the answer. */
  label: string;
  ms: number;
}

const isObject = (value: unknown): value is Record<string, unknown> => typeof value === "object" && value !== null;
const nameOf = (value: unknown): string => (typeof value === "string" ? value : "?");

/** The text of a content: a string, or parts of which some have text. */
function textOf(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content
    .filter(isObject)
    .map((part) => (typeof part.text === "string" ? part.text : `[${nameOf(part.type)}]`))
    .join("\n");
}

/** The turns of a request, or none where it is no chat. */
export function turnsOf(body: string): Turn[] {
  const asked = parsed(body);
  if (!isObject(asked)) return [];
  const turns: Turn[] = [];
  for (const name of ["system", "instructions"]) {
    if (asked[name] !== undefined) turns.push({ role: "system", text: textOf(asked[name]) });
  }
  for (const name of ["prompt", "input"]) {
    if (typeof asked[name] === "string") turns.push({ role: "user", text: asked[name] });
  }
  for (const list of [asked.messages, asked.input]) {
    for (const each of Array.isArray(list) ? list.filter(isObject) : []) {
      turns.push({ role: nameOf(each.role ?? each.type), text: textOf(each.content) });
    }
  }
  return turns;
}

/** The text of an answer: whole, or all records of a stream together. */
export function answerOf(body: string): string {
  const whole = parsed(body);
  if (whole !== undefined) return said(whole);
  return body
    .split(/\r?\n/)
    .filter((line) => line.startsWith("data:"))
    .map((line) => said(parsed(line.slice(5))))
    .join("");
}

/** The words in one record of any API. The last record of a Responses stream repeats all, so only its pieces count. */
export function said(record: unknown): string {
  if (!isObject(record)) return "";
  const { choices, delta, content, message, response, output } = record;
  if (Array.isArray(choices)) {
    const [first] = choices.filter(isObject);
    const part = isObject(first?.delta) ? first.delta : isObject(first?.message) ? first.message : first;
    return isObject(part) ? textOf(part.content ?? part.text) : "";
  }
  if (typeof delta === "string") return record.type === "response.output_text.delta" ? delta : "";
  if (isObject(delta)) return typeof delta.text === "string" ? delta.text : "";
  if (isObject(message)) return record.type === "message_start" ? "" : textOf(message.content);
  if (Array.isArray(output)) {
    return output
      .filter(isObject)
      .map((part) => textOf(part.content))
      .join("\n");
  }
  return textOf(content ?? (typeof response === "string" ? response : undefined));
}

/** A body as somebody would write it; as it is, where it is no JSON. */
export function pretty(body: string): string {
  const found = parsed(body);
  return found === undefined ? body : JSON.stringify(found, null, 2);
}

/** The request with another model, whole instead of streamed; undefined where it names none. */
export function replayed(body: string, model: string): string | undefined {
  const asked = parsed(body);
  return isObject(asked) && typeof asked.model === "string"
    ? JSON.stringify({ ...asked, model, stream: false, stream_options: undefined })
    : undefined;
}

/** Where the time of a request went, in order. What is not known is the rest. */
export function partsOf(duration: number, firstToken: number, told = ""): TimePart[] {
  const found = [...told.matchAll(/(wait|load|prompt|answer|tool|fallback)(?: ([^,]*?))? (\d+)(?:, |$)/g)].map(
    ([, name, label, ms]) => ({ name: name as TimePart["name"], label: label ?? "", ms: Number(ms) }),
  );
  if (!found.length && firstToken >= 0) {
    const read = Math.min(firstToken, duration);
    found.push({ name: "prompt", label: "", ms: read }, { name: "answer", label: "", ms: duration - read });
  }
  const rest = duration - found.reduce((all, part) => all + part.ms, 0);
  return rest > 0 ? [...found, { name: "rest", label: "", ms: rest }] : found;
}
