import { svelte } from "@sveltejs/vite-plugin-svelte";
import tailwindcss from "@tailwindcss/vite";
import { defineConfig } from "vitest/config";

/** Where `npm run dev` finds a running server. */
const server = process.env.LLAMA_APPLIANCE_URL ?? "http://127.0.0.1:8080";
const routes = ["/api", "/v1", "/models", "/props", "/health", "/tools", "/logs", "/ui"];

export default defineConfig({
  base: "./", // relative, so that one build works under every prefix
  plugins: [svelte(), tailwindcss()],
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    license: { fileName: "licenses.json" },
  },
  server: { proxy: Object.fromEntries(routes.map((route) => [route, { target: server, changeOrigin: true }])) },
  test: { include: ["tests/*.test.ts"], setupFiles: ["tests/browser.ts"], isolate: false, slowTestThreshold: 5000 },
});
