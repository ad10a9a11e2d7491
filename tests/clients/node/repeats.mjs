// node repeats.mjs TIMEOUT_MS KIND: asks through the gateway at OPENAI_BASE_URL, by vendor_b's own SDK, which gives up
// on each of its tries after so long; prints what it got in the end, and of which try.
import OpenAI from "openai";

const [timeout, kind] = process.argv.slice(2);
const client = new OpenAI({ maxRetries: 6, timeout: Number(timeout) });
const messages = [{ role: "user", content: "hello" }];
const kinds = {
  chat: () => client.chat.completions.create({ model: "lmb-5.5", messages }),
  stream: () => client.chat.completions.create({ model: "lmb-5.5", messages, stream: true }),
  responses: () => client.responses.create({ model: "lmb-5.5", input: "hello" }),
  images: () => client.images.generate({ model: "lmb-image-1", prompt: "hello" }),
  embeddings: () => client.embeddings.create({ model: "text-embedding-3-small", input: "hello" }),
};
const { data, response } = await kinds[kind]().withResponse();
let text = JSON.stringify(data);
if (kind === "stream") {
  text = "";
  for await (const chunk of data) text += chunk.choices[0]?.delta?.content ?? "";
}
const header = (name) => response.headers.get(name);
console.log(JSON.stringify({ text, replayed: header("idempotent-replayed"), original: header("x-original-request-id") }));
