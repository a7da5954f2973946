/** Short words at the edge of the page, some with something to do about them. */
export interface Toast {
  id: number;
  text: string;
  kind: "told" | "bad";
  action?: { label: string; run: () => unknown };
}

const SHOWN = 6_000;
/** How long a deletion can be taken back. */
export const UNDO = 10_000;

class Toasts {
  all = $state<Toast[]>([]);
  private last = 0;

  tell(text: string, kind: Toast["kind"] = "told", action?: Toast["action"]) {
    const id = ++this.last;
    this.all.push({ id, text, kind, action });
    setTimeout(() => this.close(id), action ? UNDO : SHOWN);
  }

  /** An arrow, so that it can be given to a promise as it is. */
  readonly failed = (error: unknown) => this.tell(error instanceof Error ? error.message : String(error), "bad");

  close(id: number) {
    this.all = this.all.filter((toast) => toast.id !== id);
  }
}

export const toasts = new Toasts();
