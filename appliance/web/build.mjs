// Builds the page into dist/, refuses a bundle that is too heavy, and with --check compares instead of writing.
//
//   node build.mjs           build, measure, write dist/
//   node build.mjs --check   build elsewhere, measure, and fail unless dist/ holds exactly the same
//
// The bundle is committed, so that nobody needs Node to run the program. Compressed copies are compared by what they
// hold: the bytes of a compressor differ between versions of zlib.
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, brotliDecompressSync, constants, gunzipSync, gzipSync } from "node:zlib";
import { build } from "vite";

const FIRST_LOAD = 150 * 1024;
const EVERYTHING = 350 * 1024;
const SMALLEST = 600; // bytes; compressing less than this saves no packet
const LICENSES = "licenses.json"; // of what the page is made of; for the payload, and never served

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, "dist");
const checking = process.argv.includes("--check");
const out = checking ? mkdtempSync(join(tmpdir(), "page-")) : dist;

const filesOf = (folder) =>
  readdirSync(folder, { recursive: true })
    .map((name) => join(folder, name))
    .filter((path) => statSync(path).isFile())
    .map((path) => relative(folder, path).replaceAll("\\", "/"))
    .sort();

try {
  await build({ root: here, logLevel: "warn", build: { outDir: out, emptyOutDir: true } });
  for (const name of filesOf(out)) {
    const content = readFileSync(join(out, name));
    if (content.length < SMALLEST || name === LICENSES) continue;
    writeFileSync(join(out, `${name}.gz`), gzipSync(content, { level: 9 }));
    const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: content.length };
    writeFileSync(join(out, `${name}.br`), brotliCompressSync(content, { params }));
  }
  const wrong = [...tooHeavy(), ...(checking ? differences() : [])];
  for (const line of wrong) console.error(line);
  process.exitCode = wrong.length ? 1 : 0;
} finally {
  if (checking) rmSync(out, { recursive: true, force: true });
}

function tooHeavy() {
  const weight = (name) => {
    const path = join(out, name);
    return statSync(existsSync(`${path}.gz`) ? `${path}.gz` : path).size;
  };
  const index = readFileSync(join(out, "index.html"), "utf8");
  const first = ["index.html", ...[...index.matchAll(/(?:src|href)="\.\/(assets\/[^"]+)"/g)].map((match) => match[1])];
  const all = filesOf(out).filter((name) => !/\.(br|gz)$/.test(name) && name !== LICENSES);
  const limits = [
    ["the first load", first, FIRST_LOAD],
    ["the whole page", all, EVERYTHING],
  ];
  return limits.flatMap(([what, names, limit]) => {
    const size = [...new Set(names)].reduce((sum, name) => sum + weight(name), 0);
    console.log(`${what}: ${(size / 1024).toFixed(1)} KiB gzip of ${limit / 1024}`);
    return size > limit ? [`error: ${what} has ${size} bytes and may have ${limit}; import less, or later`] : [];
  });
}

function differences() {
  const plain = (path) => {
    const content = readFileSync(path);
    return path.endsWith(".gz") ? gunzipSync(content) : path.endsWith(".br") ? brotliDecompressSync(content) : content;
  };
  const committed = existsSync(dist) ? filesOf(dist) : [];
  const built = filesOf(out);
  const names = [...new Set([...committed, ...built])].filter(
    (name) =>
      !committed.includes(name) || !built.includes(name) || !plain(join(dist, name)).equals(plain(join(out, name))),
  );
  return names.length
    ? [`error: dist/ is not the build of the sources (${names.slice(0, 5).join(", ")}); run python3 bootstrap.py web`]
    : [];
}
