// An identity provider, as people run them: oidc-provider with a login page, four people, a client with a secret and
// one without. With the argument "signed" the identity token has all claims; else, as by default, some are told by the
// userinfo endpoint only.
//   serve.mjs CALLBACK [signed]
import http from "node:http";
import { Provider } from "oidc-provider";

const [callback, signed] = process.argv.slice(2);
const GROUPS = { olga: ["staff", "admins"], otto: "finance", sam: ["desk"], nina: ["staff"] };

const server = http.createServer();
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;

const client = { redirect_uris: [callback], grant_types: ["authorization_code"], response_types: ["code"] };
const provider = new Provider(issuer, {
  clients: [
    { ...client, client_id: "tollgate", client_secret: "canary of a secret&1" },
    { ...client, client_id: "public", token_endpoint_auth_method: "none" },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups"],
  conformIdTokenClaims: signed !== "signed",
  pkce: { required: () => true },
  cookies: { keys: ["of a test"] },
  async findAccount(_, id) {
    const email = `${id}@example.com`;
    const claims = { sub: id, email, email_verified: id !== "uwe", groups: GROUPS[id] ?? ["admins"] };
    return { accountId: id, claims: async () => claims };
  },
});
server.on("request", provider.callback());
console.log(`listening on ${issuer}`);
