// Loaded before Portkey's gateway, which listens on all of the machine's addresses and has no
// setting for that: a bench is nobody else's business.
import { Server } from "node:net";

const listen = Server.prototype.listen;

Server.prototype.listen = function (port, host, ...rest) {
  return listen.call(this, port, host ?? "127.0.0.1", ...rest);
};
