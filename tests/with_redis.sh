#!/usr/bin/env bash
# tests/with_redis.sh COMMAND...: runs it with a Redis of its own, whose address is in
# TOLLGATE_TEST_REDIS_URL, and ends the Redis with it. Tests that need one of many databases share
# it; those that stop or fill a Redis start their own.
set -euo pipefail
memory=/dev/shm
[ -w "$memory" ] || memory=${TMPDIR:-/tmp}
folder=$(mktemp -d "$memory/tollgate-redis.XXXXXX")
redis=
end() {
  [ -z "$redis" ] || kill "$redis" 2>/dev/null || true
  [ -z "$redis" ] || wait "$redis" 2>/dev/null || true
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

for _ in 1 2 3 4 5; do
  # Below the ports that the system hands out, so that no connection takes one in between.
  port=$((RANDOM % 22000 + 10000))
  redis-server --port "$port" --bind 127.0.0.1 --dir "$folder" --save "" --appendonly yes \
    --appendfsync everysec --maxmemory-policy noeviction --databases 10000 >"$folder/log" &
  redis=$!
  for _ in $(seq 200); do
    kill -0 "$redis" 2>/dev/null || break
    if grep -q "Ready to accept connections" "$folder/log"; then
      TOLLGATE_TEST_REDIS_URL=redis://127.0.0.1:$port "$@"
      exit
    fi
    sleep 0.05
  done
done
echo "failed: redis-server does not start; see the package redis-server" >&2
exit 1
