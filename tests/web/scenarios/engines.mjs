// The view "Engines": trials, the choice, and the support bundle.
import assert from "node:assert/strict";
import { accessible, appears, button, press, saved, shows } from "../steps.mjs";
import { like, line, t } from "../words.mjs";

const seat = (page, id) => page.getByRole("article", { name: id, exact: true });

/** Each engine says how it fared and why; without --admin a choice is a command to copy. The bundle is read, then saved. */
export async function engines({ page, url, more: [good, bad] }) {
  await page.goto(`${url}/#/machine/engines`);
  await press(page, "Look again");
  await seat(page, bad).waitFor();
  await press(page, "Try all untried ones");
  await page.getByText(like("engineTrying", { seat: /.+/ })).waitFor();
  await shows(seat(page, good), line(t("Proven")), like("engineTriedAt", { when: /.+/ }));
  await shows(seat(page, bad), t("Does not work"), "it computes wrongly");
  await seat(page, good).getByText(t("Use it")).click();
  await seat(page, good).getByText(`llama-appliance engines use ${good}`).waitFor();
  await accessible(page, "engines");
  const bundle = page.getByRole("region", { name: t("Support bundle"), exact: true });
  await bundle.getByRole("checkbox").check();
  await press(bundle, "Show what it holds");
  await bundle.getByRole("button", { name: /^logs\/program\.log, / }).click();
  await appears(bundle.getByRole("region", { name: "logs/program.log" }).getByText("is proven"));
  await bundle.getByRole("button", { name: /^report\.json, / }).click();
  const shown = await bundle.getByRole("region", { name: "report.json" }).textContent();
  assert.ok(JSON.parse(shown).seats.some(({ id, standing }) => id === bad && standing === "failed"));
  await accessible(page, "the bundle");
  const save = bundle.getByRole("button", { name: new RegExp(`^${t("Save")} `) });
  await saved(page, save, /^llama-appliance-report\.zip$/);
}

/** With --admin: back from an update, then the newer one again by name, then as the program likes. */
export async function chosen({ page, url, more: [before, after] }) {
  await page.goto(`${url}/#/machine/engines`);
  const used = page.getByRole("region", { name: t("In use"), exact: true });
  await used.getByText(after).waitFor();
  await press(used, "Return to the build before the update");
  await used.getByText(before).waitFor();
  await page.getByText("'engines rollback' replaced it").waitFor();
  await press(seat(page, after), "Use it");
  await appears(used.getByText(after).first());
  await accessible(page, "chosen");
  const auto = button(used, "Let the program choose");
  await auto.click();
  await auto.waitFor({ state: "detached" });
}
