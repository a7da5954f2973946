import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { unzip } from "./zip";

const PACK = `
import io, sys, zipfile
memory = io.BytesIO()
with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
    file.writestr("report.json", '{"größe": 1}' * 1000)
    file.writestr("logs/leer.log", "")
    file.writestr("logs/modell-ä.log", "x", zipfile.ZIP_STORED)
sys.stdout.buffer.write(memory.getvalue())
`;

test("the files of a ZIP as the server packs it are read", async () => {
  const zip = execFileSync("python3", ["-c", PACK]);
  expect(await unzip(new Blob([new Uint8Array(zip)]))).toEqual([
    { name: "report.json", text: '{"größe": 1}'.repeat(1000) },
    { name: "logs/leer.log", text: "" },
    { name: "logs/modell-ä.log", text: "x" },
  ]);
});
