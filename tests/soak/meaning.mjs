// Reads a body a line (base64) with JSON.parse; answers with its price fields, written so that equal
// values are written alike here and in meaning.py, or with null if it is no object.
import { createInterface } from "node:readline";

const PRICED = JSON.parse(process.argv[2]);

function canonical(value) {
  if (value === null || typeof value === "boolean") return value;
  if (typeof value === "string") return ["text", value];
  if (typeof value === "number") {
    if (!Number.isFinite(value)) return ["number", String(value)];
    if (Number.isInteger(value)) return ["number", BigInt(value).toString()];
    const bits = Buffer.alloc(8);
    bits.writeDoubleBE(value);
    return ["number", "bits " + bits.toString("hex")];
  }
  if (Array.isArray(value)) return ["list", value.map(canonical)];
  const pairs = Object.entries(value).map(([name, inner]) => [name, canonical(inner)]);
  return ["object", pairs.sort(([a], [b]) => (points(a) < points(b) ? -1 : points(a) > points(b) ? 1 : 0))];
}

// Names sort by their code points, as they do elsewhere.
function points(text) {
  return Array.from(text, (letter) => letter.codePointAt(0).toString(16).padStart(6, "0")).join("");
}

function priced(line) {
  let read;
  try {
    // As a server would: bytes that are no UTF-8 become replacement characters.
    read = JSON.parse(Buffer.from(line, "base64").toString("utf8"));
  } catch {
    return null;
  }
  if (read === null || typeof read !== "object" || Array.isArray(read)) return null;
  const fields = PRICED.filter((name) => Object.hasOwn(read, name));
  return Object.fromEntries(fields.map((name) => [name, canonical(read[name])]));
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(priced(line)) + "\n");
}
