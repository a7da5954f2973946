import { expect, test } from "vitest";
import { SCREENS } from "../src/screens/list";

test("each folder of a screen signs in under its name", () => {
  const folders = Object.keys(import.meta.glob("../src/screens/*/screen.ts"));
  expect(SCREENS.map(({ path }) => `../src/screens/${path}/screen.ts`).sort()).toEqual(folders.sort());
});
