/** What a model is asked with: the shown branch, with attachments where the model can take them. */
import { ask } from "./api";
import { isSummary, withoutResult, type Attachment, type Message, type Settings } from "./messages";
import { base64 } from "./ids";
import { keeping } from "./keeping.svelte";
import { t } from "./prefs.svelte";
import { toasts } from "./toasts.svelte";
import { tools } from "./tools.svelte";

const cache = new Map<string, Promise<Blob>>();

/** An attachment's content, fetched once. */
export function content(attachment: Attachment): Promise<Blob> {
  let found = cache.get(attachment.hash);
  if (!found) {
    found = keeping.content(attachment.hash);
    found.catch(() => cache.delete(attachment.hash));
    cache.set(attachment.hash, found);
  }
  return found;
}

export const isImage = ({ type }: { type: string }) => type.startsWith("image/");
export const isAudio = ({ type }: { type: string }) => type.startsWith("audio/");

/** A PDF or a Word document. A system without a word processor does not know the type of the latter. */
export function isDocument({ type, name }: { type: string; name: string }): boolean {
  return type === "application/pdf" || (type !== "text/plain" && /\.docx$/i.test(name));
}

/** The text of a document, which the server reads. Pages that are left out are said. */
export async function documentText(file: Blob, name: string): Promise<string> {
  const response = await ask("api/conversations/text", { method: "POST", body: file });
  const { text, pages, read } = (await response.json()) as { text: string; pages: number; read: number };
  if (read < pages) toasts.tell(t("pdfCut", { name, read, pages }));
  return text;
}

async function part(attachment: Attachment): Promise<object> {
  const blob = await content(attachment);
  if (isImage(attachment)) {
    return { type: "image_url", image_url: { url: `data:${attachment.type};base64,${await base64(blob)}` } };
  }
  if (isAudio(attachment)) {
    const format = attachment.type.includes("mp") ? "mp3" : "wav";
    return { type: "input_audio", input_audio: { data: await base64(blob), format } };
  }
  const text = isDocument(attachment) ? await documentText(blob, attachment.name) : await blob.text();
  return { type: "text", text: `\n--- ${attachment.name} ---\n${text}` };
}

async function told(message: Message): Promise<object> {
  const { role, content: text = "", attachments = [], tool_calls: calls, tool_call_id } = message;
  if (role === "tool") return { role, content: text, tool_call_id };
  if (calls?.length) return { role, content: text, tool_calls: calls };
  if (!attachments.length) return { role, content: text };
  const parts = await Promise.all(attachments.map(part));
  return { role, content: [...(text ? [{ type: "text", text }] : []), ...parts] };
}

/** Every call has a result, or templates of models fail: one that did not run says so. */
async function toldAll(path: Message[]): Promise<object[]> {
  const all: object[] = [];
  for (const [at, message] of path.entries()) {
    if (!message.content && !message.attachments?.length && !message.tool_calls?.length && message.role !== "tool") {
      continue;
    }
    all.push(await told(message));
    if (path[at + 1]?.role === "tool") continue;
    const caller = path.slice(0, at + 1).findLastIndex((each) => each.role !== "tool");
    for (const { id } of withoutResult(path, caller)) {
      all.push({ role: "tool", tool_call_id: id, content: "This tool was not run." });
    }
  }
  return all;
}

/** Why a model cannot be given this schema; nothing if it can. */
export function schemaFault(schema: string): string {
  try {
    const given: unknown = JSON.parse(schema);
    return typeof given === "object" && given !== null && !Array.isArray(given) ? "" : t("schemaShape");
  } catch (error) {
    return t("schemaWrong", { why: String(error) });
  }
}

function format(schema: string): object {
  const wrong = schemaFault(schema);
  if (wrong) throw new Error(wrong);
  return { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(schema) as unknown } };
}

/** The body for `/v1/chat/completions`. What is not set is not sent, so that the server's values hold. */
export async function requestOf(
  path: Message[],
  settings: Settings,
  model: string | undefined,
  more: object[] = [],
): Promise<object> {
  if (settings.tools?.length) await tools.read();
  const from = path.findLastIndex(isSummary);
  const summary = from < 0 ? "" : `Summary of the conversation so far:\n${path[from]!.content}`;
  const system = [settings.system?.trim(), summary].filter(Boolean).join("\n\n");
  const { effort } = settings;
  const thinking = { enable_thinking: effort !== "off", ...(effort === "off" ? {} : { reasoning_effort: effort }) };
  const offered = settings.tools?.flatMap((name) => tools.find(name)?.definition ?? []) ?? [];
  const told = await toldAll(path.slice(from + 1));
  return {
    ...(model ? { model } : {}),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...told, ...more],
    stream: true,
    return_progress: true,
    timings_per_token: true,
    ...settings.params,
    ...(effort ? { chat_template_kwargs: thinking } : {}),
    ...(settings.schema?.trim() ? { response_format: format(settings.schema) } : {}),
    ...(offered.length ? { tools: offered } : {}),
  };
}
