#!/usr/bin/env bash
# `make run`: the gateway, up until interrupted. A vendor whose VENDOR_X_KEY is set is the real one,
# as in conf/live.toml; the others are simulated. STORE, HTTP_PORT, ADMIN_PORT and CONSOLE_PORT choose
# the rest.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/stack.sh"
folder=$root/var/run
conf=$folder/tollgate.toml
account=dev

tollgate() { "$bin/tollgate" --conf "$conf" "$@"; }

# live VENDOR: that vendor's section of conf/live.toml, tables under it included.
live() {
  awk -v name="vendor.$1" '
    /^\[/ { title = $0; gsub(/^\[+|\].*$/, "", title)
            inside = title == name || index(title, name ".") == 1 }
    inside' "$root/conf/live.toml"
}

vendors() {
  local letter name key section
  for letter in a b c d e; do
    name=vendor_$letter key=VENDOR_${letter^^}_KEY
    if [ -n "${!key:-}" ]; then
      section=$(live "$name")
      [ -n "$section" ] || fail "$key is set, but conf/live.toml has no section for $name"
      echo "$section"
    else
      vendor "$name" "$(route simulator "$name")"
    fi
  done
}

# Needed if any vendor it plays is without a key.
needs_sim() {
  local letter key
  for letter in A B C D E; do
    key=VENDOR_${letter}_KEY
    [ -n "${!key:-}" ] || return 0
  done
  return 1
}

# The store outlives a run, and so may the account.
open_account() {
  tollgate account show "$account" >/dev/null 2>&1 ||
    tollgate account create "$account" --credit 100 >/dev/null
  key=$(tollgate key issue "$account")
  [ -n "$key" ] || fail "no key was issued"
}

# A link works once, so each run prints another one.
console_link() {
  tollgate operator list | grep -q "^$account " || tollgate operator add "$account" --role owner >/dev/null
  tollgate console link --operator "$account"
}

trap stop_all EXIT
trap 'exit 0' INT TERM
build
mkdir -p "$folder/files"
# Vendor keys appear in no file of ours: live.toml names the variables that hold them.
needs_sim && start_sim "$folder/sim.log"
http=${HTTP_PORT:-$(free_port 8080)}
admin=${ADMIN_PORT:-$(free_port 9090 "$http")}
console=${CONSOLE_PORT:-$(free_port 9091 "$http" "$admin")}
{
  conf_head "$folder" "${STORE:-sqlite:$folder/tollgate.db}" "$http" "$admin" "$console"
  vendors
} >"$conf"
start_gateway "$conf" "$folder/tollgate.log" "$admin"
open_account
console_url=$(console_link)

cat <<READY
OPENAI_BASE_URL=http://127.0.0.1:$http/v1
OPENAI_API_KEY=$key
ANTHROPIC_BASE_URL=http://127.0.0.1:$http
ANTHROPIC_API_KEY=$key
TOLLGATE_CONF=$conf
TOLLGATE_ACCOUNT=$account
CONSOLE_URL=$console_url

CONSOLE_URL works once, within ten minutes, and signs in the operator '$account'. Another one:
$bin/tollgate --conf $conf console link --operator $account

A call, which the account '$account' pays for:
curl http://127.0.0.1:$http/v1/chat/completions -H 'authorization: Bearer $key' \\
  -H 'content-type: application/json' \\
  -d '{"model":"lmb-5.5","messages":[{"role":"user","content":"How much is two and two?"}]}'

The log is $folder/tollgate.log; interrupt to stop.
READY
wait "$gateway" || true
fail "the gateway ended by itself, see $folder/tollgate.log"
