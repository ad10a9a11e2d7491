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
  local http admin console
  build
  rm -rf "$folder"
  mkdir -p "$folder/files"
  start_sim "$folder/sim.log"
  http=$(free_port "$(random_port)")
  admin=$(free_port "$(random_port)" "$http")
  console=$(free_port "$(random_port)" "$http" "$admin")
  # vendor_e's first route always answers 503, so that its requests succeed at depth 1.
  {
    conf_head "$folder" "sqlite:$folder/tollgate.db" "$http" "$admin" "$console"
    printf '[videos]\npoll_ms = 100\n'
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

# answered WHAT: fails unless the last answer is good; prints its request id.
answered() {
  local status id
  status=$(sed -n 's/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$folder/head" | tail -n 1)
  [ "$status" = 200 ] || fail "$1 answered $status: $(head -c 500 "$folder/reply")"
  id=$(header x-request-id)
  [ -n "$id" ] || fail "$1 answered without x-request-id"
  echo "$id"
}

# settled WHAT ID: waits for the charge of that request; sets $amount.
settled() {
  until_true 50 charge_line "$2" || fail "no charge for request $2 of $1"
  amount=$(charged number amount_nano)
  ((amount > 0)) || fail "the charge of $1 is '$amount'"
  asked=$((asked + 1))
}

# ask TITLE MODEL STREAM DEPTH [MEMBERS]: one chat request, with more members if there are any; its
# status, depth and charge must be right.
ask() {
  local question='[{"role":"user","content":"How much is two and two?"}]'
  local body="{\"model\":\"$2\",\"stream\":$3,\"messages\":$question${5:+,$5}}"
  local id depth amount
  echo
  echo "$1"
  echo "  curl $base/chat/completions -d '{\"model\":\"$2\",\"stream\":$3,${5:+${5:0:40}}…}'"
  printf '  '
  : >"$folder/reply"
  curl -sSN --max-time 30 -D "$folder/head" "$base/chat/completions" \
    -H "authorization: Bearer $key" -H 'content-type: application/json' -d "$body" | print_answer
  id=$(answered "$2")
  grep -Eq '"content": ?"[^"]|"arguments": ?"[^"]' "$folder/reply" || fail "$2 answered nothing"
  [ "$3" = false ] || grep -q '^data: \[DONE\]' "$folder/reply" || fail "no end of the stream of $2"
  depth=$(header x-gateway-fallback-depth)
  [ "$depth" = "$4" ] || fail "$2 has fallback depth '$depth', expected $4"
  settled "$2" "$id"
  [ "$(charged number depth)" = "$4" ] || fail "the charge of $2 tells another fallback depth"
  printf '  charged %s (%s), route %s, fallback depth %s\n' \
    "$(usd "$amount")" "$(charged text basis)" "$(charged text route)" "$depth"
}

# send TITLE PATH MODEL OPTION VALUE...: a request to another endpoint, by curl and these options;
# sets $id, and what the vendor said is in $folder/reply.
send() {
  local title=$1 path=$2 model=$3 media=()
  shift 3
  [ "$1" = -F ] || media=(-H 'content-type: application/json')
  echo
  echo "$title"
  printf "  curl $base$path"
  printf " %s '%s'" "$@"
  echo
  curl -sS --max-time 30 -D "$folder/head" -o "$folder/reply" "$base$path" \
    -H "authorization: Bearer $key" "${media[@]}" "$@"
  id=$(answered "$model")
}

# costs MODEL NANO HOW: the request just sent must have been charged so much, and not a nano more.
costs() {
  local amount
  settled "$1" "$id"
  [ "$amount" = "$2" ] || fail "$1 was charged $amount nano-USD, but its price makes it $2"
  printf '  charged %s (%s): %s\n' "$(usd "$amount")" "$(charged text basis)" "$3"
}

# price MODEL KIND: what a unit of that kind costs, in nano-USD.
price() {
  local dollars fraction=000000000
  dollars=$(curl -sS --max-time 5 -H "authorization: Bearer $key" "$base/models/$1" |
    grep -o "\"$2\": *\"[0-9.]*\"" | head -n 1 | text "$2")
  [ -n "$dollars" ] || fail "$1 has no price for a $2"
  [[ $dollars != *.* ]] || fraction=${dollars#*.}$fraction
  echo $((10#${dollars%%.*} * 1000000000 + 10#${fraction:0:9}))
}

# told NAME: the first number of that name in the reply.
told() { grep -o "\"$1\": *[0-9]*" "$folder/reply" | head -n 1 | number "$1"; }

# costs_tokens MODEL IN OUT: as costs, of the tokens that the reply reports under these names.
costs_tokens() {
  local input output=0
  input=$(told "$2")
  [ -z "$3" ] || output=$(told "$3")
  costs "$1" $((input * $(price "$1" prompt) + output * $(price "$1" completion))) \
    "$input tokens in, $output out"
}

other_endpoints() {
  local id model nano ticks posted picture=$folder/picture.png
  model=lmb-5.4-nano
  send "a response, vendor_b" /responses $model \
    -d "{\"model\":\"$model\",\"input\":\"How much is two and two?\"}"
  echo "  $(text text <"$folder/reply")"
  costs_tokens $model input_tokens output_tokens

  model=lmb-image-1-mini
  send "an image, vendor_b: by tokens" /images/generations $model \
    -d "{\"model\":\"$model\",\"prompt\":\"a red dot\"}"
  text b64_json <"$folder/reply" | base64 -d >"$picture"
  [ "$(head -c 4 "$picture" | tail -c 3)" = PNG ] || fail "$model made no picture"
  echo "  a picture of $(wc -c <"$picture") bytes"
  costs_tokens $model input_tokens output_tokens

  model=lmd-imagine-image
  send "the same edited, vendor_d: by the vendor's bill" /images/edits $model \
    -F "model=$model" -F "prompt=redder" -F "image=@$picture"
  echo "  a picture of $(text b64_json <"$folder/reply" | base64 -d | wc -c) bytes"
  until_true 50 charge_line "$id" || fail "no charge for request $id of $model"
  ticks=$(charged number cost_in_usd_ticks)
  costs $model $(((ticks + 9) / 10)) "billed $ticks ticks of 0.1 nano-USD"

  model=tts-1
  send "speech, vendor_b: by characters" /audio/speech $model \
    -d "{\"model\":\"$model\",\"input\":\"Four, naïvely.\",\"voice\":\"alloy\"}"
  echo "  $(wc -c <"$folder/reply") bytes of $(header '[Cc]ontent-[Tt]ype')"
  nano=$((14 * $(price $model character)))
  [ "$(header x-service-charged-nano)" = $nano ] || fail "the head of the speech tells another price"
  costs $model $nano "$(header x-service-characters) characters"

  model=lmc-embedding-001
  send "embeddings, vendor_c" /embeddings $model \
    -d "{\"model\":\"$model\",\"input\":[\"two and two\",\"four\"],\"dimensions\":4}"
  echo "  the last is $(sed -n 's/.*"embedding": *\(\[[^]]*\]\).*/\1/p' "$folder/reply")"
  costs_tokens $model prompt_tokens ""

  posted=$(tollgate --json account show "$account" | number posted_nano)
  model=omni-moderation-latest
  send "a moderation, vendor_b" /moderations $model -d '{"input":"two and two"}'
  echo "  flagged: $(grep -o '"flagged": *[a-z]*' "$folder/reply" | sed 's/.*[: ]//')"
  [ "$(tollgate --json account show "$account" | number posted_nano)" = "$posted" ] ||
    fail "the moderation was charged"
  echo "  free"
}

# look JOB: asks after a job; succeeds when it is over.
look() {
  curl -sS --max-time 5 -H "authorization: Bearer $key" -o "$folder/reply" "$base/videos/$1"
  status=$(text status <"$folder/reply")
  [ "$status" = "${seen##* }" ] || { seen+=" $status"; printf ', %s' "$status"; }
  [ "$status" = completed ] || [ "$status" = failed ]
}

# A job: it is asked for, asked after until it is over, and its file fetched from where it is.
a_video() {
  local id model=lmd-imagine-video status seen film=$folder/film.mp4 length ticks
  send "a video, vendor_d: by the vendor's bill" /videos $model \
    -F model=$model -F "prompt=a dot that turns red" -F seconds=4 -F size=854x480
  id=$(text id <"$folder/reply")
  seen=$(text status <"$folder/reply")
  printf '  %s' "$seen"
  until_true 100 look "$id" || fail "$id is still $status"
  echo
  [ "$status" = completed ] || fail "$id failed: $(head -c 500 "$folder/reply")"
  echo "  curl -L $base/videos/$id/content"
  curl -sSL --max-time 30 -D "$folder/head" -H "authorization: Bearer $key" -o "$film" \
    "$base/videos/$id/content"
  [ "$(sed -n 's/^HTTP[^ ]* \([0-9]*\).*/\1/p' "$folder/head" | tr '\n' ' ')" = "302 200 " ] ||
    fail "the file of $id is no redirect away: $(cat "$folder/head")"
  length=$(wc -c <"$film")
  [ "$(head -c 8 "$film" | tail -c 4)" = ftyp ] || fail "the file of $id is no video"
  echo "  302, then $length bytes of $(header '[Cc]ontent-[Tt]ype')"
  until_true 50 charge_line "$id" || fail "no charge for $id"
  ticks=$(charged number cost_in_usd_ticks)
  costs $model $(((ticks + 9) / 10)) \
    "$(charged number seconds) seconds of $(charged text resolution), billed $ticks ticks"
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
    printf '  %-42s  %-22s %s\n' \
      "$(text request_id <<<"$line")" "$(text model <<<"$line")" "$(usd "$amount")"
    sum=$((sum + amount)) count=$((count + 1))
  done < <(tollgate --json charges "$account")
  ((count == asked)) || fail "$asked requests, but $count charges"
  ((sum == posted)) || fail "the charges sum to $sum nano-USD, but $posted is posted"
  ((held == 0)) || fail "$held nano-USD is still held"
  ((credited == available + held + posted - written_off)) || fail "the account does not balance"
  echo "credited = available + held + posted - written off, and the charges sum to what is posted"
}

# The console shows what the statement says. The gateway ends with the demo, so that waits for who
# looks at it; nobody does where it runs by itself.
console() {
  local url posted
  tollgate operator add "$account" --role owner >/dev/null
  url=$(tollgate console link --operator "$account")
  posted=$(tollgate --json account show "$account" | number posted_nano)
  curl -sfL -c "$folder/cookies" -b "$folder/cookies" -o "$folder/page" "$url" &&
    curl -sf -b "$folder/cookies" -o "$folder/page" "${url%/link/*}/accounts/$account" ||
    fail "the console is not to be seen at $url"
  # It leaves zeros at the end out, as in 0.0123.
  grep -qF "$(usd "$posted" | sed 's/0* USD$//')" "$folder/page" ||
    fail "the console does not show the $posted nano-USD that are charged"
  echo
  echo "CONSOLE_URL=$(tollgate console link --operator "$account")"
  if [ -t 0 ] && [ -t 1 ]; then
    read -r -p "The console shows the account $account. Enter ends the demo. " _ || true
  fi
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
other_endpoints
a_video
statement
console
