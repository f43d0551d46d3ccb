// Sends one INCR with one client, on a connection that the server breaks before
// it answers; prints what came of it. Started by ../resend_test.go with
// NODE_PATH set: node resend.cjs CLIENT PORT
const [client, port] = [process.argv[2], Number(process.argv[3])];

async function main() {
  if (client.startsWith("ioredis")) {
    const Redis = require("ioredis");
    const settings = client === "ioredis" ? {} : { autoResendUnfulfilledCommands: false, commandTimeout: 1000 };
    const r = new Redis(port, "127.0.0.1", settings);
    r.on("error", () => {});
    console.log(await r.incr("k").catch((e) => "failed: " + e));
    r.disconnect();
  } else {
    const { createClient } = require("redis");
    const r = createClient({ socket: { host: "127.0.0.1", port } });
    r.on("error", () => {});
    await r.connect();
    console.log(await r.incr("k").catch((e) => "failed: " + e));
    r.destroy();
  }
}
main().then(() => process.exit(0), (e) => { console.error(e); process.exit(1); });
