/** A question that `parts/Question.svelte` asks: for one line of text, or without `text` for a yes to a deletion. */
export interface Question {
  label: string;
  text?: string;
  answer: (text: string | undefined) => void;
}

class Questions {
  open = $state.raw<Question>();

  /** What was written, or undefined if the person went away. */
  ask(label: string, text?: string): Promise<string | undefined> {
    return new Promise((resolve) => (this.open = { label, text, answer: resolve }));
  }

  /** Whether something may be deleted for ever. */
  async deletes(label: string): Promise<boolean> {
    return (await this.ask(label)) !== undefined;
  }
}

export const questions = new Questions();
