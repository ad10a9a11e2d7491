// node rates.mjs FAMILY STREAMED [PATIENCE_MS | spent]: makes calls through the gateway, one after the other, by
// the SDK of vendor_a or of vendor_b with its usual settings: one for each of STREAMED, such as [false,true]. It
// prints what its user reads of each, and each try of the SDK. The user waits so long for a call; with "spent" the
// account has used up its requests before.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [family, streamed, more] = process.argv.slice(2);
const messages = [{ role: "user", content: "hello" }];
let tries = [];

/** What the SDK calls by, which writes down what goes over it. */
async function fetch(address, request) {
  const at = performance.now();
  const reply = await globalThis.fetch(address, request);
  const retry = new Headers(request.headers).get("x-stainless-retry-count");
  tries.push({ at, status: reply.status, waitMs: reply.headers.get("retry-after-ms"), retry });
  return reply;
}

const chat = (stream) => ({ model: "lmb-5.5", messages, max_tokens: 120, stream });
const message = (stream) => ({ model: "lma-sonnet-4-6", messages, max_tokens: 120, stream });
const clients = { vendor_a: () => new Anthropic({ fetch }), vendor_b: () => new OpenAI({ fetch }) };
const asks = {
  vendor_a: (stream, options) => client.messages.create(message(stream), options),
  vendor_b: (stream, options) => client.chat.completions.create(chat(stream), options),
};
const client = clients[family]();

/** Calls until a call is refused; how many were not. */
async function spend() {
  for (let served = 0; ; served += 1) {
    try {
      await asks[family](false, { maxRetries: 0 });
    } catch (error) {
      if (error.status === 429) return served;
      throw error;
    }
  }
}

async function call(stream) {
  tries = [];
  const options = Number(more) ? { signal: AbortSignal.timeout(Number(more)) } : {};
  try {
    const { data, response } = await asks[family](stream, options).withResponse();
    let events = 0;
    if (stream) for await (const _ of data) events += 1;
    return { headers: Object.fromEntries(response.headers), events, tries };
  } catch (error) {
    const { status, code, type, message } = error;
    const headers = Object.fromEntries(error.headers ?? []);
    return { class: error.constructor.name, status, code, type, message, headers, tries };
  }
}

const served = more === "spent" ? await spend() : 0;
const calls = [];
for (const stream of JSON.parse(streamed)) calls.push(await call(stream));
console.log(JSON.stringify({ served, calls }));
