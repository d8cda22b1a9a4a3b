// What a file says of itself: its format by its name, the columns of a CSV by its first line.

const FORMATS = { csv: "csv", ndjson: "ndjson", jsonl: "ndjson", txt: "txt" };
const PEEKED = 64 * 1024; // bytes that are read of a file

export function formatOf(name) {
  const [, extension = "", compression = ""] = name.toLowerCase().match(/\.([a-z]+?)(?:\.(gz|zst))?$/) || [];
  return { type: FORMATS[extension] || "txt", compression };
}

/** The names in the first row of a CSV, and the likeliest for URLs; null if they cannot be read. */
export async function columnsOf(file, { compression }) {
  if (compression === "zst") return null; // browsers cannot decompress it
  try {
    const text = await beginning(file, compression === "gz");
    const [line] = text.replace(/^\ufeff/, "").split(/\r?\n/, 1);
    const names = [...line.matchAll(/\s*(?:"((?:[^"]|"")*)"|([^,]*))(?:,|$)/g)].map(([, quoted, bare]) => (quoted?.replaceAll('""', '"') ?? bare ?? "").trim());
    if (names.at(-1) === "" && !line.endsWith(",")) names.pop();
    return { names, guess: names.find((name) => /^(url|link|href|address)$/i.test(name)) || names.find((name) => /url|link/i.test(name)) || names[0] };
  } catch {
    return null;
  }
}

async function beginning(file, isCompressed) {
  if (!isCompressed) return file.slice(0, PEEKED).text();
  const reader = file.stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const { value } = await reader.read();
  reader.cancel().catch(() => {});
  return new TextDecoder().decode(value);
}
