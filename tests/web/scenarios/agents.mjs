// Agent runs and plugins, as the operator of the machine sees them.
import assert from "node:assert/strict";
import { accessible, appears, button, press, shows } from "../steps.mjs";
import { like, line, t } from "../words.mjs";

async function begin(page, url, task, { tools = [], asks = false } = {}) {
  await page.goto(`${url}/#/machine/agents`);
  await page.getByText(t("New run"), { exact: true }).click();
  await page.getByLabel(t("Task")).fill(task);
  for (const tool of tools) await page.getByRole("checkbox", { name: tool }).check();
  if (asks) await page.getByRole("checkbox", { name: t("The model may ask me") }).check();
  await press(page, "Start");
  return page.getByRole("article", { name: task, exact: true });
}

/** A run is begun by the form, which shows what is wrong at its field; its question is answered, and its turns are seen. */
export async function run({ page, url, allow }) {
  allow(/ 400 .*\/api\/runs/, / 409 .*\/result/);
  await page.goto(`${url}/#/machine/agents`);
  await page.getByText(t("No runs yet.")).waitFor();
  await page.getByText(t("New run"), { exact: true }).click();
  await press(page, "Start");
  const wrong = (field) => page.locator("label").filter({ has: field }).getByRole("alert");
  const [task, turns] = ["Task", "Turns with tools, at most"].map((label) => page.getByLabel(t(label)));
  await shows(wrong(task), "there is nothing to answer");
  await task.fill("What does the note say?");
  await turns.fill("-1");
  await press(page, "Start");
  await shows(wrong(turns), "max_tool_iterations");
  await accessible(page, "the form");
  await turns.press("Control+A"); // Firefox would add to what is there
  await turns.pressSequentially("4");
  await page.getByRole("checkbox", { name: "read_file" }).check();
  await page.getByRole("checkbox", { name: t("The model may ask me") }).check();
  await press(page, "Start");

  const run = page.getByRole("article", { name: "What does the note say?", exact: true });
  await shows(run, t("Waits for you"), "Which note?");
  await accessible(page, "a question");
  await run.getByLabel(like("runReply", { name: "ask_user" })).fill("note.txt");
  await press(run, "Send");
  await shows(run, "It says: hi.", line(t("Done")));
  await shows(run, ...[1, 2, 3].map((number) => like("runTurn", { number })), like("runUsed", { used: 2, all: 4 }));
  const calls = run.locator("details").filter({ hasText: "read_file" });
  assert.equal(await calls.evaluate((node) => node.open), false, "what is answered is folded");
  await calls.locator("summary").click();
  await calls.getByText("from the note").waitFor();
  await accessible(page, "a run");
  await page.reload(); // its events are told again
  await run.getByRole("button").first().click();
  await run.getByText("It says: hi.").waitFor();
}

/** A run is cancelled when somebody has said yes, and keeps its text. */
export async function cancel({ page, url }) {
  const run = await begin(page, url, "Talk for ever");
  await run.getByText("so far").waitFor();
  await press(run, "Cancel the run");
  const question = page.getByRole("dialog");
  await question.getByText(t("Cancel this run? Its text so far is kept.")).waitFor();
  await press(question, "Cancel");
  await run.getByText(t("Answering"), { exact: true }).waitFor();
  await press(run, "Cancel the run");
  await press(question, "Cancel the run");
  await shows(run, line(t("Cancelled")), "so far");
  await button(run, "Cancel the run").waitFor({ state: "detached" });
}

/** A run whose events are not held any more is read from its result, while it goes on and at its end. */
export async function long({ page, url, allow }) {
  allow(/ 400 .*\/events/, / 409 .*\/result/);
  const run = await begin(page, url, "Say much", { asks: true });
  await shows(run, "Enough?", "word word word");
  await run.getByLabel(like("runReply", { name: "ask_user" })).fill("no network");
  await press(run, "It cannot be done");
  await shows(run, line(t("Failed")), "tool_execution_error: ", "word word word");
}

/** A model that no run can use is named, and takes runs again. */
export async function locked({ page, url, allow }) {
  allow(/ 503 .*\/api\/runs/);
  const run = await begin(page, url, "Crash");
  await run.getByText(t("Failed"), { exact: true }).waitFor();
  await page.getByText("its engine failed 1 times").waitFor();
  await press(page, "Accept runs again");
  await page.getByText("its engine failed 1 times").waitFor({ state: "detached" });
}

/** A broken plugin is named with its reason until it is mended; settings are shown, and secrets are not. */
export async function plugins({ page, url, told }) {
  await page.goto(`${url}/#/machine/agents`);
  const broken = page.getByRole("article", { name: "/bad", exact: true });
  await shows(broken, line(t("Error")), "ModuleNotFoundError: No module named 'nothing_of_the_kind'");
  await appears(page.getByRole("article", { name: "/off", exact: true }).getByText(t("Switched off")));
  const good = page.getByRole("article", { name: "/good", exact: true });
  await shows(good, line(t("Ready")), 'settings.api_key: "[REDACTED]"', "settings.size: 3");
  await accessible(page, "plugins");
  await told("mended");
  await press(page, "Look again");
  await broken.getByText(t("Ready"), { exact: true }).waitFor();
}
