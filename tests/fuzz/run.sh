#!/usr/bin/env bash
# Runs each fuzz target for FUZZ_SECONDS (default 60), or only the targets named as arguments.
# cargo-fuzz asks for nightly because of the sanitizers. Safe Rust gains little from them, and
# coverage alone, which is what steers the fuzzer, needs only flags that stable takes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$root/tests/fuzz
seconds=${FUZZ_SECONDS:-60}

host=$(rustc -vV | sed -n 's/^host: //p')
case $host in
  *-linux-gnu | *-apple-darwin) ;;
  *) echo "libFuzzer is not known to work on $host" >&2; exit 1 ;;
esac
command -v c++ >/dev/null || { echo "a C++ compiler is missing: run make setup" >&2; exit 1; }

# What is fuzzed is what is shipped: start from the gateway's own locked versions.
cp "$root/Cargo.lock" "$here/Cargo.lock"

flags="-Cpasses=sancov-module"
flags+=" -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags+=" -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/fuzz
# --target, even for this very machine: otherwise build scripts and macros get the flags too,
# and cannot link.
RUSTFLAGS=$flags cargo build --release --bins --manifest-path "$here/Cargo.toml" --target "$host"

names=("$@")
if [ ${#names[@]} = 0 ]; then
  for file in "$here"/targets/*.rs; do names+=("$(basename "$file" .rs)"); done
fi
for name in "${names[@]}"; do
  # What earlier runs learned is kept; the golden files are only read.
  mkdir -p "$root/var/fuzz/$name"
  echo "fuzzing $name for $seconds s"
  "$CARGO_TARGET_DIR/$host/release/$name" "$root/var/fuzz/$name" "$root/tests/golden" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$root/var/fuzz/$name-" 2>"$root/var/fuzz/$name.log" || {
    grep -A 3 -E 'panicked at|ERROR: libFuzzer|Test unit written' "$root/var/fuzz/$name.log" |
      head -n 30 >&2
    echo "$name failed; see var/fuzz/$name.log" >&2
    exit 1
  }
  sed -n 's/^Done /  /p; s/^stat::new_units_added: */  new inputs: /p' "$root/var/fuzz/$name.log"
done
