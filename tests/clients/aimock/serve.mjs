// aimock as its own command line starts it, but for what that has no flag for: a video is done when it was asked for
// the third time, and its file is on another host. Like the storage of the real vendor, that host refuses whoever
// shows it a key.
import http from "node:http";
import { Logger, createServer, loadFixturesFromDir, validateFixtures } from "@copilotkit/aimock";

const FTYP = Buffer.from("00000018667479706d703432000000006d70343269736f6d", "hex");

const files = http.createServer((request, response) => {
  const refused = request.method !== "GET" || "authorization" in request.headers;
  response.writeHead(refused ? 400 : 200, { "content-type": refused ? "text/plain" : "video/mp4" });
  response.end(refused ? "Only one auth mechanism allowed" : Buffer.concat([FTYP, Buffer.alloc(50_000, request.url)]));
});
await new Promise((listening) => files.listen(0, "127.0.0.1", listening));

// Node takes longer to start than a test does, so this one process has a server for each who asks, which knows nothing
// of the others: POST / makes one and tells its address, DELETE / with that address ends it.
const servers = new Map();

async function start() {
  const fixtures = loadFixturesFromDir(import.meta.dirname, new Logger("info"));
  const faults = validateFixtures(fixtures).filter((fault) => fault.severity === "error");
  if (faults.length > 0) throw new Error(JSON.stringify(faults));
  for (const { response } of fixtures) {
    if (response.video?.url) response.video.url = `http://127.0.0.1:${files.address().port}${response.video.url}`;
  }
  const started = await createServer(fixtures, {
    port: 0,
    grokVideo: { pollsBeforeInProgress: 1, pollsBeforeCompleted: 3 },
    auth: { apiKeys: process.env.AIMOCK_API_KEYS.split(",") },
  });
  servers.set(started.url, started.server);
  return started.url;
}

function end(url) {
  servers.get(url).closeAllConnections();
  servers.get(url).close();
  servers.delete(url);
  return "";
}

const door = http.createServer(async (request, response) => {
  const body = Buffer.concat(await request.toArray()).toString();
  response.end(request.method === "POST" ? await start() : end(body));
});
await new Promise((listening) => door.listen(0, "127.0.0.1", listening));
console.log(`listening on http://127.0.0.1:${door.address().port}`);
