"""Sends one INCR on a connection that breaks before the answer comes."""
import sys

import redis

try:
    print(redis.Redis(host="127.0.0.1", port=int(sys.argv[1])).incr("k"))
except redis.ConnectionError as e:
    print("failed:", e)
