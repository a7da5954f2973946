/** The streams, the load test and the arithmetic of the playground. Times are seconds since a load test began. */
import { askWith } from "../../lib/api";
import { said } from "../../lib/captured";
import type { Timings } from "../../lib/messages";
import { models } from "../../lib/models.svelte";
import { phase } from "../../lib/phase";
import { records } from "../../lib/sse";

export interface Piece {
  text: string;
  thoughts: string;
  /** How much of the prompt has been read, 0 to 1. */
  read?: number;
  tokens?: number;
  timings?: Timings;
}

interface StreamRecord {
  choices?: { delta?: { reasoning_content?: string } }[];
  prompt_progress?: { total: number; processed: number };
  usage?: { completion_tokens?: number };
  timings?: Timings;
  error?: { message: string };
}

/** Ask for a stream, and take each piece as it comes. An error in the stream is thrown. */
export async function stream(
  path: string,
  body: object,
  signal: AbortSignal,
  take: (piece: Piece) => void,
  begun?: () => void,
) {
  const response = await askWith({ ...body, stream: true }, path, { signal });
  begun?.();
  for await (const data of records(response.body!)) {
    if (data === "[DONE]") return;
    const record = JSON.parse(data) as StreamRecord;
    if (record.error) throw new Error(record.error.message);
    const { prompt_progress: progress, timings, usage } = record;
    take({
      text: said(record),
      thoughts: record.choices?.[0]?.delta?.reasoning_content ?? "",
      read: progress && progress.processed / progress.total,
      tokens: usage?.completion_tokens ?? timings?.predicted_n,
      timings,
    });
  }
}

export const STAGES = ["waiting", "loading", "reading", "answering"] as const;
export type Stage = (typeof STAGES)[number];

export interface Tried {
  model: string;
  /** The stages in their order, each with its beginning; the first begins with the request. */
  marks: readonly { stage: Stage; at: number }[];
  first?: number;
  ended?: number;
  tokens: number;
  error?: string;
}

/** The request in this stage from now on. */
export function entered(marks: Tried["marks"], stage: Stage, at: number): Tried["marks"] {
  return marks.at(-1)?.stage === stage ? marks : [...marks, { stage, at }];
}

/** How long each stage of a request took until now. */
export function stretches({ marks, ended }: Tried, now: number): { stage: Stage; seconds: number }[] {
  return marks.map(({ stage, at }, index) => ({ stage, seconds: (marks[index + 1]?.at ?? ended ?? now) - at }));
}

const LOOK_EVERY = 200; // ms

export interface Load {
  models: string[];
  count: number;
  atOnce: number;
  text: string;
  longest: number;
}

/** Ask the models in turn, and tell how far all requests are. A request that the signal ends has no end. */
export async function loadTest(
  { models: names, count, atOnce, text, longest }: Load,
  signal: AbortSignal,
  tell: (all: Tried[], now: number) => void,
) {
  const start = performance.now();
  const clock = () => (performance.now() - start) / 1000;
  const turns = Array.from({ length: count }, () => names).flat();
  const all: Tried[] = [];
  const looks: (() => void)[] = [];
  const show = () => {
    for (const look of looks) look();
    tell(
      all.map((each) => ({ ...each })),
      clock(),
    );
  };

  /** The stage is looked for when something of the answer comes, and with every look: a load is no part of it. */
  async function ask(model: string) {
    const tried: Tried = { model, marks: [], tokens: 0 };
    let read: number | undefined;
    const look = () => {
      if (tried.ended !== undefined) return;
      const listed = models.find(model);
      const { is } = phase({
        resuming: false,
        begun: tried.first === undefined ? "nothing" : "text",
        prompt: read,
        quiet: 0,
        load: listed && models.state(listed) === "loading" ? {} : undefined,
      });
      tried.marks = entered(tried.marks, STAGES.find((stage) => stage === is) ?? "waiting", clock());
    };
    const take = ({ text, thoughts, read: part, tokens }: Piece) => {
      const said = text || thoughts;
      read = said ? undefined : (part ?? read);
      if (said) tried.first ??= clock();
      tried.tokens = tokens ?? tried.tokens + (said ? 1 : 0);
      look();
    };
    look();
    all.push(tried);
    looks.push(look);
    const body = {
      model,
      messages: [{ role: "user", content: text }],
      max_tokens: longest,
      cache_prompt: false,
      return_progress: true,
      stream_options: { include_usage: true },
    };
    try {
      await stream("v1/chat/completions", body, signal, take, () => (read = 0));
    } catch (error) {
      if (signal.aborted) return;
      tried.error = (error as Error).message;
    }
    tried.ended = clock();
  }

  async function work() {
    for (let model = turns.shift(); model !== undefined && !signal.aborted; model = turns.shift()) await ask(model);
  }

  const timer = setInterval(show, LOOK_EVERY);
  await Promise.all(Array.from({ length: atOnce }, work));
  clearInterval(timer);
  show();
}

export interface Total {
  model: string;
  /** Requests that have ended, those of them that failed, good requests a second, their tokens a second. */
  figures: [number, number, number, number];
  /** The seconds to the first piece of an answer, p50 and p95. */
  firsts: (number | undefined)[];
}

/** The figures of each model, as `appliance/features/load_test/rules.py` has them for the command line. */
export function totals(all: readonly Tried[]): Total[] {
  return [...new Set(all.map(({ model }) => model))].map((model) => {
    const ended = all.filter((each) => each.model === model && each.ended !== undefined);
    const good = ended.filter(({ error }) => error === undefined);
    const span = Math.max(...ended.map((each) => each.ended!)) - Math.min(...ended.map((each) => each.marks[0]!.at));
    const rate = (count: number) => (span > 0 ? count / span : 0);
    const firsts = good.flatMap(({ first, marks }) => (first === undefined ? [] : [first - marks[0]!.at]));
    const tokens = good.reduce((sum, { tokens }) => sum + tokens, 0);
    return {
      model,
      figures: [ended.length, ended.length - good.length, rate(good.length), rate(tokens)],
      firsts: [percentile(firsts, 0.5), percentile(firsts, 0.95)],
    };
  });
}

/** By linear interpolation between ranks. */
function percentile(values: number[], part: number): number | undefined {
  const sorted = values.toSorted((a, b) => a - b);
  const place = part * (sorted.length - 1);
  const [below, above] = [sorted[Math.floor(place)], sorted[Math.ceil(place)]];
  return below === undefined ? undefined : below + (place % 1) * (above! - below);
}

/** The cosine of each vector with each other one, -1 to 1; 0 with one that has no direction. */
export function similarities(vectors: readonly (readonly number[])[]): number[][] {
  const product = (a: readonly number[], b: readonly number[]) => a.reduce((sum, x, at) => sum + x * (b[at] ?? 0), 0);
  const lengths = vectors.map((each) => Math.sqrt(product(each, each)));
  return vectors.map((a, row) =>
    vectors.map((b, column) => {
      const length = lengths[row]! * lengths[column]!;
      return length > 0 ? Math.max(-1, Math.min(1, product(a, b) / length)) : 0;
    }),
  );
}
