// node embeddings.mjs MODEL TEXTS: embeds through the gateway at OPENAI_BASE_URL, by vendor_b's own SDK, in each of
// the ways in which it can be asked, and prints what it made of the answers. Of its own accord it asks for base64.
import OpenAI from "openai";

const [model, texts] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 0, timeout: 20_000 });
const embed = (more) => client.embeddings.create({ model, input: JSON.parse(texts), ...more });
const vectors = (reply) => reply.data.map((entry) => entry.embedding);

function unpack(text) {
  const bytes = Buffer.from(text, "base64");
  return Array.from({ length: bytes.length / 4 }, (_, at) => bytes.readFloatLE(4 * at));
}

const usual = await embed();
const floats = await embed({ encoding_format: "float" });
const packed = await embed({ encoding_format: "base64" });
console.log(
  JSON.stringify({
    usual: vectors(usual),
    floats: vectors(floats),
    unpacked: vectors(packed).map(unpack),
    usage: usual.usage,
  }),
);
