#!/usr/bin/env bash
# `make demo`: real requests through a fresh gateway to simulated vendors, each answer with what
# it cost, then a statement whose sums must agree to the nano. Exit 0 only if all of it went well.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/stack.sh"
folder=$root/var/demo
conf=$folder/tollgate.toml
account=demo

tollgate() { "$bin/tollgate" --conf "$conf" "$@"; }

start_stack() {
  local http admin
  build
  rm -rf "$folder"
  mkdir -p "$folder/files"
  start_sim "$folder/sim.log"
  http=$(free_port) admin=$(free_port)
  # vendor_e's first route always answers 503, so that its requests succeed at depth 1.
  {
    conf_head "$folder" "sqlite:$folder/tollgate.db" "$http" "$admin"
    vendor vendor_a "$(route simulator vendor_a)"
    vendor vendor_b "$(route simulator vendor_b)"
    vendor vendor_c "$(route simulator vendor_c)"
    vendor vendor_d "$(route simulator vendor_d)"
    vendor vendor_e "$(route down vendor_e status=503)" "$(route backup vendor_e)"
  } >"$conf"
  start_gateway "$conf" "$folder/tollgate.log" "$admin"
  base=http://127.0.0.1:$http/v1
}

open_account() {
  tollgate account create "$account" --credit 5 >/dev/null
  key=$(tollgate key issue "$account")
  [ -n "$key" ] || fail "no key was issued"
  echo "account $account has 5 USD; requests go to $base"
}

# Prints the text and the tool calls of a reply or a stream as they come. JSON's escapes are mostly
# printf's; an escaped slash or surrogate would show as it is, and neither occurs in the simulator's
# answers.
print_answer() {
  local line text='"(([^"\\]|\\.)+)"'
  local content="\"content\": ?$text" name="\"name\": ?$text" arguments="\"arguments\": ?$text"
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\n' "$line" >>"$folder/reply"
    if [[ $line =~ $content ]]; then printf '%b' "${BASH_REMATCH[1]//\\\"/\"}"; fi
    if [[ $line =~ $name ]]; then printf '[call of %s] ' "${BASH_REMATCH[1]}"; fi
    if [[ $line =~ $arguments ]]; then printf '%b' "${BASH_REMATCH[1]//\\\"/\"}"; fi
  done
  echo
}

header() { sed -n "s/^$1: *\([^[:cntrl:]]*\).*/\1/p" "$folder/head" | tail -n 1; }
charge_line() {
  tollgate --json charges "$account" | grep -E "\"request_id\": ?\"$1\"" >"$folder/charge"
}
charged() { "$1" "$2" <"$folder/charge"; }

# ask TITLE MODEL STREAM DEPTH [MEMBERS]: one chat request, with more members if there are any; its
# status, depth and charge must be right.
ask() {
  local question='[{"role":"user","content":"How much is two and two?"}]'
  local body="{\"model\":\"$2\",\"stream\":$3,\"messages\":$question${5:+,$5}}"
  local status id depth amount
  echo
  echo "$1"
  echo "  curl $base/chat/completions -d '{\"model\":\"$2\",\"stream\":$3,${5:+${5:0:40}}…}'"
  printf '  '
  : >"$folder/reply"
  curl -sSN --max-time 30 -D "$folder/head" "$base/chat/completions" \
    -H "authorization: Bearer $key" -H 'content-type: application/json' -d "$body" | print_answer
  status=$(sed -n 's/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$folder/head" | tail -n 1)
  [ "$status" = 200 ] || fail "$2 answered $status: $(head -c 500 "$folder/reply")"
  grep -Eq '"content": ?"[^"]|"arguments": ?"[^"]' "$folder/reply" || fail "$2 answered nothing"
  [ "$3" = false ] || grep -q '^data: \[DONE\]' "$folder/reply" || fail "no end of the stream of $2"
  depth=$(header x-gateway-fallback-depth)
  [ "$depth" = "$4" ] || fail "$2 has fallback depth '$depth', expected $4"
  id=$(header x-request-id)
  [ -n "$id" ] || fail "$2 answered without x-request-id"
  until_true 50 charge_line "$id" || fail "no charge for request $id of $2"
  amount=$(charged number amount_nano)
  ((amount > 0)) || fail "the charge of $2 is '$amount'"
  [ "$(charged number depth)" = "$4" ] || fail "the charge of $2 tells another fallback depth"
  printf '  charged %s (%s), route %s, fallback depth %s\n' \
    "$(usd "$amount")" "$(charged text basis)" "$(charged text route)" "$depth"
  asked=$((asked + 1))
}

statement() {
  local line amount sum=0 count=0 json
  json=$(tollgate --json account show "$account")
  local credited available held posted written_off
  for line in credited available held posted written_off; do
    printf -v "$line" '%s' "$(number "${line}_nano" <<<"$json")"
    [ -n "${!line}" ] || fail "the statement lacks ${line}_nano: $json"
  done
  echo
  echo "statement of $account"
  for line in credited available held posted written_off; do
    printf '  %-12s %s\n' "$line" "$(usd "${!line}")"
  done
  echo "charges"
  while IFS= read -r line; do
    amount=$(number amount_nano <<<"$line")
    printf '  %s  %-22s %s\n' \
      "$(text request_id <<<"$line")" "$(text model <<<"$line")" "$(usd "$amount")"
    sum=$((sum + amount)) count=$((count + 1))
  done < <(tollgate --json charges "$account")
  ((count == asked)) || fail "$asked requests, but $count charges"
  ((sum == posted)) || fail "the charges sum to $sum nano-USD, but $posted is posted"
  ((held == 0)) || fail "$held nano-USD is still held"
  ((credited == available + held + posted - written_off)) || fail "the account does not balance"
  echo "credited = available + held + posted - written off, and the charges sum to what is posted"
}

trap stop_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
asked=0
start_stack
open_account
tools='"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object"'
tools+=',"properties":{"city":{"type":"string"}}}}}]'
ask "streamed, vendor_a, with a tool: translated to its own format and back" \
  lma-opus-5 true 0 "$tools"
grep -q '"finish_reason":"tool_calls"' "$folder/reply" || fail "vendor_a called no tool"
ask "whole, vendor_a" lma-sonnet-4-6 false 0
for stream in true false; do
  how=$([ $stream = true ] && echo streamed || echo whole)
  ask "$how, vendor_b" lmb-5.5 $stream 0
  ask "$how, vendor_c" lmc-3.5-flash $stream 0
  ask "$how, vendor_d" lmd-4.6 $stream 0
  ask "$how, vendor_e, whose first route is down" orgA/famA-V3.2 $stream 1
done
statement
