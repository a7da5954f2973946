/** One reading at a time: news that come meanwhile are read once more at its end, so the older of two answers never stays. */
export function oneByOne(read: () => Promise<unknown>): () => Promise<void> {
  let reading: Promise<void> | undefined;
  let again = false;
  return () => {
    again = true;
    return (reading ??= (async () => {
      try {
        while (again) {
          again = false;
          await read();
        }
      } finally {
        reading = undefined;
      }
    })());
  };
}
