/** What a model is asked with: the shown branch, with attachments where the model can take them. */
import { ask } from "./api";
import type { Attachment, Message, Settings } from "./chat";

const cache = new Map<string, Promise<Blob>>();

/** An attachment's content, fetched once. */
export function content(attachment: Attachment): Promise<Blob> {
  let found = cache.get(attachment.hash);
  if (!found) {
    found = ask(`api/conversations/attachments/${attachment.hash}`).then((response) => response.blob());
    found.catch(() => cache.delete(attachment.hash));
    cache.set(attachment.hash, found);
  }
  return found;
}

export function isImage(attachment: { type: string }): boolean {
  return attachment.type.startsWith("image/");
}

export function isAudio(attachment: { type: string }): boolean {
  return attachment.type.startsWith("audio/");
}

function dataUrl(blob: Blob, type: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(`data:${type};base64,${String(reader.result).split(",", 2)[1] ?? ""}`);
    reader.onerror = () => reject(reader.error ?? new Error("unreadable"));
    reader.readAsDataURL(blob);
  });
}

async function part(attachment: Attachment): Promise<object> {
  const blob = await content(attachment);
  if (isImage(attachment)) return { type: "image_url", image_url: { url: await dataUrl(blob, attachment.type) } };
  if (isAudio(attachment)) {
    const data = (await dataUrl(blob, attachment.type)).split(",", 2)[1];
    return { type: "input_audio", input_audio: { data, format: attachment.type.includes("mp") ? "mp3" : "wav" } };
  }
  return { type: "text", text: `\n--- ${attachment.name} ---\n${await blob.text()}` };
}

async function told(message: Message): Promise<object> {
  const { role, content: text = "", attachments = [] } = message;
  if (!attachments.length) return { role, content: text };
  const parts = await Promise.all(attachments.map(part));
  return { role, content: [...(text ? [{ type: "text", text }] : []), ...parts] };
}

/** The body for `/v1/chat/completions`. What is not set is not sent, so that the server's values hold. */
export async function requestOf(path: Message[], settings: Settings, model: string | undefined): Promise<object> {
  const messages = await Promise.all(path.filter((message) => message.content || message.attachments?.length).map(told));
  const system = settings.system?.trim();
  return {
    ...(model ? { model } : {}),
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    return_progress: true,
    timings_per_token: true,
    ...settings.params,
  };
}
