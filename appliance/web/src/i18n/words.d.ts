/** The words of the first load in one language. */
declare module "words:*" {
  const words: Record<keyof typeof import("./first").first, string>;
  export default words;
}
