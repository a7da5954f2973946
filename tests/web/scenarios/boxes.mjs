/** The boxes of a pool: none, one, and drained. */
import { accessible, post } from "../browser.mjs";
import { t } from "../words.mjs";

export async function boxes({ page, url }) {
  await page.goto(`${url}/#/machine/boxes`);
  await page.getByText("llama-appliance pool create").waitFor();
  await accessible(page, "no pool");
  const made = await post(url, "/api/pool/create", { name: "desk", addresses: ["127.0.0.1"], port: 0 });
  if (!made.ok) throw new Error(`${made.status} ${await made.text()}`);
  const desk = page.getByRole("region", { name: "desk" });
  await desk.getByText(t("here"), { exact: true }).waitFor();
  await desk.getByRole("button", { name: t("Drain") }).click();
  await desk.getByText(t("drained"), { exact: true }).waitFor();
  await accessible(page, "a box");
  await desk.getByRole("button", { name: t("Take requests again") }).click();
  await desk.getByText(t("here"), { exact: true }).waitFor();
}
