// An identity provider that lets everybody in at once and has one fault: POST /_fault names it. GET /_count tells how
// often each path was asked for.
import { createHash, createHmac } from "node:crypto";
import http from "node:http";
import { SignJWT, exportJWK, generateKeyPair } from "jose";

const SECRET = process.env.OIDC_SECRET;
const CLIENT = "tollgate";
const keys = {};
for (const name of ["published", "other", "new"]) keys[name] = await generateKeyPair("RS256");

let fault = "";
let asked = {};
const codes = new Map();
const published = [{ ...(await exportJWK(keys.published.publicKey)), kid: "published", alg: "RS256", use: "sig" }];

const server = http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString();
  const url = new URL(request.url, issuer);
  asked[url.pathname] = (asked[url.pathname] ?? 0) + 1;
  try {
    await answer(request, url, body, response);
  } catch (why) {
    json(response, 500, { error: `${why}` });
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
console.log(`listening on ${issuer}`);

async function answer(request, url, body, response) {
  const at = fault.split(" ")[0] === url.pathname ? fault.split(" ")[1] : "";
  if (at === "slow") return;
  if (at === "drip") return void setInterval(() => response.write(" "), 500);
  if (at === "large") return json(response, 200, { padding: "x".repeat(2 << 20) });
  if (at === "redirect") return void response.writeHead(307, { location: `${issuer}/elsewhere` }).end();
  if (at === "error") return json(response, 500, { error: "server_error" });
  if (at === "client") return json(response, 401, { error: "invalid_client", error_description: `not ${SECRET}` });
  if (at === "garbage") return json(response, 200, "canary of a token");
  switch (url.pathname) {
    case "/_fault":
      fault = body;
      if (fault === "rotated") {
        published.push({ ...(await exportJWK(keys.new.publicKey)), kid: "new", alg: "RS256", use: "sig" });
      }
      asked = {};
      return json(response, 200, {});
    case "/_count":
      return json(response, 200, asked);
    case "/.well-known/openid-configuration":
      return json(response, 200, metadata());
    case "/jwks":
      return json(response, 200, { keys: published });
    case "/authorize": {
      const query = url.searchParams;
      const code = `code-${codes.size}`;
      codes.set(code, { nonce: query.get("nonce"), challenge: query.get("code_challenge") });
      const back = new URL(query.get("redirect_uri"));
      back.searchParams.set("code", code);
      back.searchParams.set("state", query.get("state"));
      return void response.writeHead(303, { location: `${back}` }).end();
    }
    case "/token": {
      const form = new URLSearchParams(body);
      const begun = codes.get(form.get("code"));
      const proof = createHash("sha256").update(form.get("code_verifier")).digest("base64url");
      if (begun?.challenge !== proof) return json(response, 400, { error: "invalid_grant" });
      codes.delete(form.get("code"));
      const reply = { access_token: "at", token_type: "Bearer", expires_in: 60 };
      if (fault !== "no token") reply.id_token = await identity(begun.nonce);
      return json(response, 200, reply);
    }
    case "/userinfo":
      return json(response, 200, { sub: fault === "subject" ? "somebody" : "ada", groups: ["admins"] });
    default:
      return json(response, 404, {});
  }
}

function metadata() {
  return {
    issuer: fault === "metadata" ? "https://id.example.com" : issuer,
    authorization_endpoint: fault === "plain" ? "http://id.example.com/authorize" : `${issuer}/authorize`,
    token_endpoint: `${issuer}/token`,
    userinfo_endpoint: `${issuer}/userinfo`,
    jwks_uri: `${issuer}/jwks`,
    response_types_supported: ["code"],
    subject_types_supported: ["public"],
    id_token_signing_alg_values_supported: ["RS256", "HS256", "none"],
  };
}

async function identity(nonce) {
  const now = Math.floor(Date.now() / 1000);
  const claims = {
    iss: fault === "issuer" ? "https://id.example.com" : issuer,
    aud: { audience: "another", audiences: [CLIENT, "another"] }[fault] ?? CLIENT,
    sub: "ada",
    email: { "long name": `${"a".repeat(300)}@example.com`, "unprintable name": "zoë@example.com" }[fault] ?? "ada@example.com",
    email_verified: fault !== "unverified",
    groups: { nobody: ["staff"], number: 7, nested: [["admins"]] }[fault] ?? ["admins"],
    nonce: fault === "nonce" ? "another" : nonce,
    iat: now - 7200,
    exp: fault === "expired" ? now - 3600 : now + 60,
  };
  if (fault === "no nonce") delete claims.nonce;
  if (fault === "no email") delete claims.email;
  if (fault === "elsewhere" || fault === "subject") delete claims.groups;
  if (fault === "hash") claims.at_hash = createHash("sha256").update("another").digest().subarray(0, 16).toString("base64url");
  if (fault === "none" || fault === "hs256") {
    const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
    const head = `${part({ alg: fault === "none" ? "none" : "HS256" })}.${part(claims)}`;
    const mac = createHmac("sha256", SECRET).update(head).digest("base64url");
    return `${head}.${fault === "none" ? "" : mac}`;
  }
  const key = { key: "other", signature: "other", rotated: "new" }[fault] ?? "published";
  const kid = { key: "unknown", rotated: "new" }[fault] ?? "published";
  return new SignJWT(claims).setProtectedHeader({ alg: "RS256", kid }).sign(keys[key].privateKey);
}

function json(response, status, value) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}
