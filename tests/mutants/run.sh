#!/usr/bin/env bash
# Mutates the rooms of money, one change at a time, and tells which changes no test notices.
# Arguments go to cargo-mutants: `tests/mutants/run.sh --list`, `--file src/money.rs`.
#
# A mutant of the gateway takes a minute to build. So the ledger and money, and of the catalogue
# what reads prices, which lean on nothing else, are put together as a crate of their own, with
# those of their tests that need no store.
#
# `tests/mutants/run.sh store` mutates what the store does with money, in the whole gateway, with
# the unit tests and those of the ledger. It takes hours; `--file` and `--shard` make it shorter.
#
# Both are copies: a run that is interrupted leaves no mutant in the source.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}/mutants
crate=$target/crate

# Where it is missing it goes beside the build, and nowhere else on the machine.
export PATH=$PATH:$target/tools/bin
if ! cargo mutants --version >/dev/null 2>&1; then
  CARGO_TARGET_DIR=$target/tools/build cargo install cargo-mutants --locked --root "$target/tools"
  rm -rf "$target/tools/build"
fi

# Few random cases, and the same for every mutant: there are many, and runs shall agree.
export PROPTEST_CASES=${PROPTEST_CASES:-16} PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
export CARGO_TARGET_DIR=$target/build
rm -rf "$crate"
mkdir -p "$crate/src/catalogue" "$crate/tests" "$crate/.cargo"

if [[ ${1:-} == store ]]; then
  shift
  (cd "$root" && git ls-files -z | xargs -0 cp --parents -t "$crate")
  if [[ " $* " != *" --file "* ]]; then
    set -- --file src/store/allotments.rs --file 'src/store/allotments/**' \
      --file src/store/lent_money.rs "$@"
    for room in account_settings accounts allotment_rows allotments budget_rows budgets \
      hold_rows holds lending payments rate_rows rates; do
      set -- --file "src/store/sqlite/$room.rs" "$@"
    done
  fi
  cd "$crate"
  exec tests/with_redis.sh cargo mutants --in-place --output "$target" \
    --cargo-arg=--lib --cargo-arg=--test=stores "$@"
fi

cp -r "$root"/src/{ledger,money,toml_reader}{,.rs} "$root/tests/mutants/lib.rs" "$crate/src"
# The maps of leases, and the digits of a key's hash.
cp "$root"/src/{fast_map,hex}.rs "$crate/src"
cp "$root"/src/catalogue/{kind,prices}.rs "$crate/src/catalogue"
cp -r "$root"/tests/{ledger,prepaid,mutants/main.rs} "$crate/tests"
# The versions are those of the gateway's own lock file.
cp "$root/tests/mutants/Cargo.toml" "$root/Cargo.lock" "$crate"
cp "$root/.cargo/mutants.toml" "$crate/.cargo"

cd "$crate"
exec cargo mutants --in-place --output "$target" "$@"
