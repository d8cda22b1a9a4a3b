// fauxqs on loopback (its own command listens on every address), with a clock that a test sets ahead.
// node server.mjs <port> <file with the seconds, as a double>
import { readFileSync } from "node:fs";
import { buildApp } from "fauxqs";

const [port, ahead] = process.argv.slice(2);
const now = Date.now;
Date.now = () => now() + readFileSync(ahead).readDoubleLE() * 1000;
await buildApp({ logger: false }).listen({ port: Number(port), host: "127.0.0.1" });
