import { t } from "./prefs.svelte";

/** A question that `parts/Question.svelte` asks: for one line of text, or without `text` for a yes to what cannot be undone. */
export interface Question {
  label: string;
  text?: string;
  /** What its button says. */
  yes: string;
  answer: (text: string | undefined) => void;
}

class Questions {
  open = $state.raw<Question>();

  /** What was written, or undefined if the person went away. */
  ask(label: string, text: string): Promise<string | undefined> {
    return new Promise((resolve) => (this.open = { label, text, yes: t("save"), answer: resolve }));
  }

  /** Whether something may be done that cannot be undone. */
  async allows(label: string, yes: string): Promise<boolean> {
    return (await new Promise((answer) => (this.open = { label, yes, answer }))) !== undefined;
  }
}

export const questions = new Questions();
