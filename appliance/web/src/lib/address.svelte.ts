/** What a view shows is in its address, such as `#/machine/activity?model=small`: a reload and Back show the same again. */
let hash = $state(location.hash);
let typing: ReturnType<typeof setTimeout> | undefined;
const PAUSE = 400; // ms after the last letter; browsers refuse a page that changes its address too often

addEventListener("hashchange", () => {
  clearTimeout(typing);
  hash = location.hash;
});

/**
 * The values of these names in the address; one with its usual value is left out. What is chosen makes a new entry of the
 * browser's history, and what is `typed` changes the present one.
 */
export function inAddress<Name extends string>(usual: Record<Name, string>) {
  function set(values: Partial<Record<Name, string>>, typed = false) {
    const [path, before] = hash.split("?", 2);
    const query = new URLSearchParams(before);
    for (const name of Object.keys(values) as Name[]) {
      if (values[name] === usual[name]) query.delete(name);
      else query.set(name, values[name]!);
    }
    hash = query.size ? `${path}?${query}` : path!;
    clearTimeout(typing);
    if (typed) typing = setTimeout(() => location.replace(hash), PAUSE);
    else location.hash = hash;
  }
  const shown = { set } as Record<Name, string> & { set: typeof set };
  for (const name of Object.keys(usual) as Name[]) {
    Object.defineProperty(shown, name, {
      get: () => new URLSearchParams(hash.split("?", 2)[1]).get(name) ?? usual[name],
      set: (value: string) => set({ [name]: value } as Partial<Record<Name, string>>),
    });
  }
  return shown;
}
