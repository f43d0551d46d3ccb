"""Runs redis-py, with default settings, against HOST PORT; fails if it does not
see a Redis. Started by clients.go."""

import sys

import redis


def check(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def transactions(r):
    """A pipeline is a transaction by default: all of it, or nothing."""
    pipe = r.pipeline()
    for i in range(300):
        pipe.incr("{tx}n")
    pipe.set("{tx}s", "text").get("{tx}s")
    check(pipe.execute(), list(range(1, 301)) + [True, b"text"])

    def changed(pipe):
        n = int(pipe.get("{tx}n"))
        if n < 302:
            r.incr("{tx}n")  # somebody else: begin again
        pipe.multi()
        pipe.set("{tx}n", n * 2)

    check(r.transaction(changed, "{tx}n"), [True])
    check(r.get("{tx}n"), b"604")
    try:
        pipe = r.pipeline()
        for i in range(20):
            pipe.incr(f"far{i}")
        pipe.execute()
    except redis.ResponseError as e:
        check("CROSSSLOT" in str(e) or "don't hash to the same slot" in str(e), True)
    else:
        raise AssertionError("a transaction on several shards succeeded")
    check(r.exists(*[f"far{i}" for i in range(20)]), 0)
    check(r.delete("{tx}n", "{tx}s"), 2)


def run(**options):
    r = redis.Redis(host=sys.argv[1], port=int(sys.argv[2]), **options)
    check(r.ping(), True)
    check(r.flushdb(), True)
    check(r.set("k", "v"), True)
    check(r.get("k"), b"v")
    check(r.get("missing"), None)
    check(r.set("k", "w", nx=True), None)
    check(r.set("k", "w", get=True), b"v")
    check(r.incr("n"), 1)
    check(r.incrby("n", 41), 42)
    check(r.decr("n", 2), 40)
    try:
        r.incr("k")
    except redis.ResponseError as e:
        check(str(e), "value is not an integer or out of range")
    else:
        raise AssertionError("INCR of a text succeeded")
    check(r.expire("n", 100), True)
    check(90 < r.ttl("n") <= 100, True)
    check(r.ttl("missing"), -2)
    check(r.persist("n"), True)
    check(r.mget("k", "missing", "n"), [b"w", None, b"40"])
    pipe = r.pipeline(transaction=False)
    for _ in range(500):
        pipe.incr("piped")
    check(pipe.execute(), list(range(1, 501)))
    transactions(r)
    r.mset({f"scan:{i}": i for i in range(100)})
    check(len(set(r.scan_iter(match="scan:*", count=7))), 100)
    check(sorted(r.keys("scan:1?")), [b"scan:%d" % i for i in range(10, 20)])
    check(r.info()["redis_version"], "7.0.15")
    check(r.info("server")["redis_mode"], "standalone")
    check(r.config_get("save"), {"save": ""})
    check(r.dbsize(), 103)
    check(r.exists("k", "n", "missing"), 2)
    check(r.delete("k", "n"), 2)
    check(isinstance(r.client_list(), list), True)
    check(r.command_count() > 40, True)
    r.close()


run()
if redis.VERSION[0] >= 5:
    run(protocol=3)
print("ok")
