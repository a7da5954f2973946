/** The boxes of a pool: none, one, and drained. */
import { post } from "../browser.mjs";
import { accessible, press } from "../steps.mjs";
import { t } from "../words.mjs";

export async function boxes({ page, url }) {
  await page.goto(`${url}/#/machine/boxes`);
  await page.getByText("llama-appliance pool create").waitFor();
  await accessible(page, "no pool");
  const made = await post(url, "/api/pool/create", { name: "desk", addresses: ["127.0.0.1"], port: 0 });
  if (!made.ok) throw new Error(`${made.status} ${await made.text()}`);
  const desk = page.getByRole("region", { name: "desk" });
  await desk.getByText(t("here"), { exact: true }).waitFor();
  await press(desk, "Drain");
  await desk.getByText(t("drained"), { exact: true }).waitFor();
  await accessible(page, "a box");
  await press(desk, "Take requests again");
  await desk.getByText(t("here"), { exact: true }).waitFor();
}
