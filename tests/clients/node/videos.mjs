// node videos.mjs PICTURE URL: makes videos through the gateway at OPENAI_BASE_URL by vendor_b's own SDK: of words
// alone, of a file, and of an address; waits for them, downloads, lists and deletes, and prints what it saw.
import crypto from "node:crypto";
import fs from "node:fs";
import OpenAI from "openai";

const [picture, url] = process.argv.slice(2);
const { videos } = new OpenAI({ maxRetries: 0, timeout: 20_000 });
const film = (more) => videos.create({ model: "lmd-imagine-video", prompt: "hello", ...more });

async function ended({ id }) {
  for (;;) {
    const job = await videos.retrieve(id);
    if (["completed", "failed"].includes(job.status)) return job;
    await new Promise((over) => setTimeout(over, 50));
  }
}

async function sum({ id }) {
  const reply = await videos.downloadContent(id);
  return crypto.createHash("sha256").update(Buffer.from(await reply.arrayBuffer())).digest("hex");
}

const jobs = [];
jobs.push(await ended(await film({ seconds: "1" })));
jobs.push(await ended(await film({ seconds: "2", input_reference: fs.createReadStream(picture) })));
jobs.push(await ended(await film({ seconds: "3", input_reference: { image_url: url } })));
const { response } = await videos.retrieve(jobs[0].id).withResponse();
const files = await Promise.all(jobs.map(sum));
const listed = [];
for await (const job of videos.list({ limit: 2 })) listed.push(job.id);
const deleted = await videos.delete(jobs[0].id);
const gone = await videos.retrieve(jobs[0].id).catch(({ status, code }) => ({ status, code }));
const told = ({ status, code, param, constructor }) => ({ status, code, param, class: constructor.name });
const refused = await film({ seconds: "16" }).catch(told);

const pollAfter = response.headers.get("openai-poll-after-ms");
console.log(JSON.stringify({ jobs, files, listed, pollAfter, deleted, gone, refused }));
