#!/usr/bin/env bash
# Installs what is missing for `build`, `test`, `kubernetes`, `units`, `packages`, `bench`, `count` or
# `peers`, and nothing that is already there.
# Debian only; elsewhere it says what to install. When nothing is missing, any system will do.
set -euo pipefail

missing=()

# need PACKAGE COMMAND...: the package is missing unless every command is found.
need() {
  local package=$1 command
  shift
  for command in "$@"; do
    command -v "$command" >/dev/null || { missing+=("$package"); return; }
  done
}

look() {
  need cmake cmake               # pingora's zlib
  need build-essential cc c++    # SQLite, jemalloc and the fuzzer's runtime
  need curl curl
  case $1 in
    build) ;;
    kubernetes)
      need python3 python3
      python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
      ;;
    units)
      need systemd systemd-analyze
      ;;
    packages)
      need dpkg-dev dpkg-shlibdeps
      need buildah buildah
      need umoci umoci               # their tests, from here on
      need runc runc
      need mmdebstrap mmdebstrap
      need binutils objcopy
      need prometheus prometheus
      need python3 python3
      ;;
    test)
      need redis-server redis-server
      need prometheus prometheus promtool   # the rules and boards
      need openssl openssl           # a certificate for HTTP/2
      need nodejs node
      need npm npm
      need chromium chromium         # the console, in a browser
      need python3 python3
      # Debian splits venv from python3, so that the command alone proves nothing.
      python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
      ;;
    bench)
      need redis-server redis-server
      need openssl openssl           # a certificate for the vendor of large bodies
      need python3 python3
      need wrk wrk
      # Its folder is seldom on the path of an ordinary user.
      PATH=$PATH:/usr/sbin need nginx nginx
      ;;
    count)
      need python3 python3
      need valgrind valgrind callgrind_control
      ;;
    peers)
      need nodejs node
      need npm npm
      need python3 python3
      python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
      ;;
    *) echo "usage: tests/setup.sh [build|test|kubernetes|units|packages|bench|count|peers]" >&2; exit 2 ;;
  esac
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Debian starts a server as soon as it is installed; we start our own on free ports, and the
# machine's owner did not ask for one.
silence() {
  local package
  for package in "$@"; do
    case $package in redis-server | nginx | prometheus) ;; *) continue ;; esac
    if [ -d /run/systemd/system ]; then
      as_root systemctl disable --now "$package" || true
    else
      as_root service "$package" stop || true
    fi
  done >/dev/null 2>&1
}

look "${1:-build}"
if ! command -v cargo >/dev/null; then
  echo "cargo is missing: install Rust 1.95 or newer, see https://rustup.rs" >&2
  exit 1
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if ! [ -f /etc/debian_version ] || ! command -v apt-get >/dev/null; then
  echo "please install, with this system's package manager: ${missing[*]} (Debian's names)" >&2
  exit 1
fi
if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
  echo "please run as root: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
as_root apt-get update -qq
as_root env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
silence "${missing[@]}"
