// What is guessed from a file: its format from its name, the delimiter and columns of a CSV from its
// first line.

const FORMATS = { csv: "csv", tsv: "csv", ndjson: "ndjson", jsonl: "ndjson", txt: "txt" };
const PEEKED = 64 * 1024; // bytes that are read of a file
export const DELIMITERS = { ",": "Comma", ";": "Semicolon", "\t": "Tab", "|": "Vertical bar" };

/** The format of a file and, as the fields of the form, how its CSV is read. */
export async function read(file) {
  const [, extension = "", compression = ""] = file.name.toLowerCase().match(/\.([a-z]+?)(?:\.(gz|zst))?$/) || [];
  const line = await firstLineOf(file, compression);
  const delimiter = extension === "tsv" ? "\t" : delimiterOf(line || "");
  return { type: FORMATS[extension] || "txt", line, delimiter, header: true, column: columnsOf(line, delimiter)?.guess ?? "url" };
}

/** The names in the first row of a CSV, and the likeliest for URLs; null if it could not be read. */
export function columnsOf(line, delimiter) {
  if (line == null) return null;
  const names = split(line, delimiter);
  return { names, guess: names.find((name) => /^(url|link|href|address)$/i.test(name)) || names.find((name) => /url|link/i.test(name)) || names[0] };
}

/** The delimiter that makes the most columns; spreadsheets write others than a comma. */
const delimiterOf = (line) =>
  Object.keys(DELIMITERS).reduce((best, one) => (split(line, one).length > split(line, best).length ? one : best));

function split(line, delimiter) {
  const fields = [""];
  let quoted = false;
  let before = "";
  for (const character of line) {
    if (character === '"') {
      if (!quoted && before === '"') fields[fields.length - 1] += '"';
      quoted = !quoted;
    } else if (character === delimiter && !quoted) fields.push("");
    else fields[fields.length - 1] += character;
    before = character;
  }
  return fields.map((name) => name.trim());
}

async function firstLineOf(file, compression) {
  if (compression === "zst") return null; // browsers cannot decompress it
  try {
    const text = await beginning(file, compression === "gz");
    return text.replace(/^\ufeff/, "").split(/\r?\n/, 1)[0];
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
