// Runs ioredis and node-redis, with default settings, against HOST PORT, and
// fails if they do not see a Redis. Started by ../clients.go.
import assert from "node:assert/strict";
import Redis from "ioredis";
import { createClient } from "redis";

const [host, port] = [process.argv[2], Number(process.argv[3])];

async function withIoredis() {
  const r = new Redis(port, host);
  await r.flushdb();
  assert.equal(await r.set("k", "v"), "OK");
  assert.equal(await r.get("k"), "v");
  assert.equal(await r.get("missing"), null);
  assert.equal(await r.set("k", "w", "NX"), null);
  assert.equal(await r.incr("n"), 1);
  assert.equal(await r.incrby("n", 41), 42);
  await assert.rejects(r.incr("k"), /ERR value is not an integer or out of range/);
  assert.equal(await r.expire("n", 100), 1);
  assert.ok((await r.ttl("n")) > 90);
  assert.deepEqual(await r.mget("k", "missing", "n"), ["v", null, "42"]);
  const p = r.pipeline();
  for (let i = 0; i < 500; i++) p.incr("piped");
  const results = await p.exec();
  assert.deepEqual(results.map((x) => x[1]), Array.from({ length: 500 }, (_, i) => i + 1));
  assert.deepEqual(await r.multi().incr("{tx}n").set("{tx}s", "t").incr("{tx}n").exec(), [[null, 1], [null, "OK"], [null, 2]]);
  await r.watch("{tx}n");
  await r.incr("{tx}n");
  assert.equal(await r.multi().incr("{tx}n").exec(), null);
  const far = r.multi();
  for (let i = 0; i < 20; i++) far.incr(`far${i}`);
  await assert.rejects(far.exec(), /CROSSSLOT/);
  assert.equal(await r.exists("far0", "far1", "far2", "far3"), 0);
  const m = new Map();
  for (let i = 0; i < 100; i++) m.set(`scan:${i}`, String(i));
  await r.mset(m);
  const seen = new Set();
  for await (const keys of r.scanStream({ match: "scan:*", count: 7 })) keys.forEach((k) => seen.add(k));
  assert.equal(seen.size, 100);
  const big = await r.incrby("big", "9223372036854775807").catch((e) => e);
  assert.ok(!(big instanceof Error), String(big));
  assert.equal(await r.get("big"), "9223372036854775807");
  await r.quit();
}

async function withNodeRedis() {
  const r = createClient({ url: `redis://${host}:${port}` });
  r.on("error", (e) => { throw e; });
  await r.connect();
  await r.flushDb();
  assert.equal(await r.set("k", "v"), "OK");
  assert.equal(await r.get("k"), "v");
  assert.equal(await r.get("missing"), null);
  assert.equal(await r.incr("n"), 1);
  assert.equal(await r.incrBy("n", 41), 42);
  await assert.rejects(r.incr("k"), /ERR value is not an integer or out of range/);
  assert.equal(await r.expire("n", 100), 1);
  assert.ok((await r.ttl("n")) > 90);
  assert.deepEqual(await r.mGet(["k", "missing", "n"]), ["v", null, "42"]);
  const piped = await Promise.all(Array.from({ length: 500 }, () => r.incr("piped")));
  assert.deepEqual(piped, Array.from({ length: 500 }, (_, i) => i + 1));
  const plain = await r.multi().incr("plain").incr("plain").execAsPipeline();
  assert.deepEqual(plain, [1, 2]);
  assert.deepEqual(await r.multi().incr("{tx}n").set("{tx}s", "t").incr("{tx}n").exec(), [1, "OK", 2]);
  await r.watch("{tx}n");
  await r.incr("{tx}n");
  await assert.rejects(r.multi().incr("{tx}n").exec(), /watched keys has been changed/);
  const far = r.multi();
  for (let i = 0; i < 20; i++) far.incr(`far${i}`);
  await assert.rejects(far.exec(), /CROSSSLOT/);
  assert.equal(await r.exists(["far0", "far1", "far2", "far3"]), 0);
  for (let i = 0; i < 100; i++) await r.set(`scan:${i}`, String(i));
  const seen = new Set();
  for await (const keys of r.scanIterator({ MATCH: "scan:*", COUNT: 7 }))
    (Array.isArray(keys) ? keys : [keys]).forEach((k) => seen.add(k));
  assert.equal(seen.size, 100);
  await r.close();
}

await withIoredis();
await withNodeRedis();
console.log("ok");
