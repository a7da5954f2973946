/** A question for one line of text, which `parts/Question.svelte` asks. */
export interface Question {
  label: string;
  text: string;
  answer: (text: string | undefined) => void;
}

class Questions {
  open = $state.raw<Question>();

  /** What was written, or undefined if the person went away. */
  ask(label: string, text: string): Promise<string | undefined> {
    return new Promise((resolve) => (this.open = { label, text, answer: resolve }));
  }
}

export const questions = new Questions();
