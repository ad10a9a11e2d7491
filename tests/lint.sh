#!/usr/bin/env bash
# What the compiler, clippy and rustdoc say of our own crates; any warning fails.
#   tests/lint.sh clippy   every target of the gateway
#   tests/lint.sh alone    the gateway with its own features, without its tests': the compiler and
#                          rustdoc; and the fuzz targets
#
# `cargo clippy` and `cargo doc` check all dependencies, which the tests then compile again. Here cargo
# compiles them, as the tests need them, and calls this script in the place of the compiler, so that
# of our own crates nothing is compiled.
set -euo pipefail

# as_compiler COMPILER ARGUMENTS...: looks at a crate that cargo has it compile.
as_compiler() {
  local words=() pages=() name='' kind='' folder='' suffix='' emit='' word path
  local compiler=$1
  shift
  while [ $# -gt 0 ]; do
    word=$1
    shift
    case $word in
      --emit=*) emit=$word; words+=(--emit=dep-info,metadata); continue ;;
      --out-dir) folder=$1; words+=("$word" "$1"); shift; continue ;;
      --crate-name) name=$1 ;;
      --crate-type) kind=$1 ;;
      --test) kind=test ;;
      extra-filename=*) suffix=${word#*=} ;;
      # What was looked at has nothing else; a few that were compiled have only the other.
      *=*.rlib)
        path=${word#*=}
        [ ! -e "${path%.rlib}.rmeta" ] || word=${word%.rlib}.rmeta
        ;;
    esac
    words+=("$word")
    pages+=("$word")
  done
  if [ "$LINT" = clippy ]; then
    clippy-driver "$compiler" "${words[@]}" -D warnings
    # Cargo begins anew where nothing has come out.
    case $emit:$kind in
      *link*:lib) : >"$folder/lib$name$suffix.rlib" ;;
      *link*) : >"$folder/$name$suffix" ;;
    esac
  elif [ -n "${CARGO_PRIMARY_PACKAGE:-}" ]; then
    "$compiler" "${words[@]}" -D warnings
    [ "$name" != tollgate ] || rustdoc "${pages[@]}" --out-dir "$LINT_PAGES" -D warnings
  else
    "$compiler" "${words[@]}"
  fi
}

# Of dependencies only libraries can be looked at: programs and macros run while others are compiled.
is_compiled() { [[ -z ${CARGO_PRIMARY_PACKAGE:-} && " $* " != *" --crate-type lib "* ]]; }

if [ -n "${LINT:-}" ]; then
  if is_compiled "$@" && [ "$LINT" = alone ]; then exec "$@"; fi
  as_compiler "$@"
  exit
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
export LINT=${1:-}
case $LINT in
  clippy)
    # The empty programs go to a folder of their own.
    RUSTC_WORKSPACE_WRAPPER=$root/tests/lint.sh CARGO_BUILD_BUILD_DIR=$target \
      CARGO_TARGET_DIR=$target/lint cargo build --all-targets
    ;;
  alone)
    # Some dependencies have fewer features then. They are looked at in a copy, since the gateway
    # cannot be made of them.
    copy=$target/alone
    rm -rf "$copy"
    mkdir -p "$copy/debug"
    cp -a "$target/debug/.fingerprint" "$copy/debug"
    cp -al "$target/debug/deps" "$target/debug/build" "$copy/debug"
    export CARGO_TARGET_DIR=$copy RUSTC_WRAPPER=$root/tests/lint.sh LINT_PAGES=$target/doc
    cargo build --lib
    # The lock file and the profile are the gateway's, so that versions agree and what was compiled for
    # it serves again. Without the fuzzer's runtime no C++ is compiled.
    cp Cargo.lock tests/fuzz/Cargo.lock
    sed -n '/^\[profile\.dev/,/^\[profile\.release/{/^\[profile\.release/!p}' Cargo.toml >"$copy/dev.toml"
    LINT_PAGES=$copy/doc cargo build --bins --no-default-features \
      --manifest-path tests/fuzz/Cargo.toml --config "$copy/dev.toml"
    ;;
  *) echo "usage: tests/lint.sh clippy|alone" >&2; exit 2 ;;
esac
