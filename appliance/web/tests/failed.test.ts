import { expect, test } from "vitest";
import { failedLoad, lacksMemory } from "../src/lib/failed";

const LOG = "; its last log lines:\n  ggml_backend_cuda: 1 CUDA devices\n  cudaMalloc failed: out of memory";

test.each([
  [`model 'a: b' failed to start: it ended with exit code 1${LOG}`, "a: b", "it ended with exit code 1", 2, true],
  ["model 'm' will not fit: it needs 9 GB of 8 GB", "m", "it needs 9 GB of 8 GB", 0, true],
  ["model 'm' failed to start: the file is broken; get another", "m", "the file is broken; get another", 0, false],
])("%s", (error, model, cause, lines, memory) => {
  expect(failedLoad(error)).toMatchObject({ model, cause });
  expect(failedLoad(error)!.log.length).toBe(lines);
  expect(lacksMemory(error)).toBe(memory);
});

test("other errors stay as they are", () => {
  expect(failedLoad("the engine of model 'm' failed: it broke")).toBeUndefined();
});
