# The stack under `make demo` and `make run`: build, simulator, configuration, gateway, clean-up.
# Sourced by both; does nothing by itself. Needs bash and curl.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
profile=${PROFILE:-release}
# Cargo calls the folder of its dev profile "debug".
bin=${CARGO_TARGET_DIR:-$root/target}/${profile/#dev/debug}
started=()

fail() {
  echo "failed: $*" >&2
  exit 1
}

build() {
  (cd "$root" && cargo build --profile "$profile" --bin tollgate --example sim)
}

# Ends what we started, newest first, and only that. Bounded: a process that does not leave in
# five seconds is killed.
stop_all() {
  local i tries pid
  for ((i = ${#started[@]} - 1; i >= 0; i--)); do
    pid=${started[i]}
    kill "$pid" 2>/dev/null || continue
    for ((tries = 0; tries < 50; tries++)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  started=()
}

taken() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Below the ports that the system hands out, so that no connection takes one in between.
random_port() { echo $((RANDOM % 22000 + 10000)); }

# free_port PREFERRED [OTHER...]: the preferred port if nobody listens there, else a random free one;
# none of the others.
free_port() {
  local port=$1
  while [[ " ${*:2} " == *" $port "* ]] || taken "$port"; do port=$(random_port); done
  echo "$port"
}

# until_true TENTHS COMMAND...: repeats the command ten times a second until it succeeds.
until_true() {
  local tenths=$1
  shift
  while ! "$@"; do
    ((tenths-- > 0)) || return 1
    sleep 0.1
  done
}

# start_sim LOG: sets $sim to the simulator's address.
start_sim() {
  "$bin/examples/sim" --listen 127.0.0.1:0 >"$1" 2>&1 &
  started+=($!)
  until_true 100 grep -q '^listening on ' "$1" || fail "the simulator did not start, see $1"
  sim=$(sed -n 's/^listening on //p' "$1" | head -n 1)
}

# conf_head FOLDER STORE HTTP_PORT ADMIN_PORT CONSOLE_PORT: all of a configuration but the vendors.
conf_head() {
  cat <<TOML
[listen]
http = "127.0.0.1:$3"
admin = "127.0.0.1:$4"
console = "127.0.0.1:$5"
[store]
url = "$2"
outbox = "$1/outbox"
[files]
url = "file:$1/files"
[audit]
to = "file:$1/audit.jsonl"
[rules]
dir = "$root/lua-free-rules"
[log]
format = "text"
level = "info"
TOML
}

# route NAME VENDOR [FAULT]: one route to the simulator. A fault is a segment of its address.
route() {
  local path
  case $2 in
    vendor_c) path=v1beta/openai ;;
    vendor_e) path=v1/openai ;;
    *) path=v1 ;;
  esac
  echo "{ name = \"$1\", base_url = \"$sim/$2${3:+/$3}/$path\", key = \"vk-simulator\" }"
}

# vendor NAME ROUTE...: the section of a vendor, with its routes in order of preference.
vendor() {
  local name=$1 routes
  shift
  printf -v routes '%s, ' "$@"
  printf '[vendor.%s]\nroutes = [%s]\n' "$name" "${routes%, }"
}

# start_gateway CONF LOG ADMIN_PORT: makes the store unless it is there, starts the gateway, returns
# when it is ready.
start_gateway() {
  "$bin/tollgate" --conf "$1" init >"$2" 2>&1 || fail "the store cannot be made: $(cat "$2")"
  "$bin/tollgate" --conf "$1" serve >"$2" 2>&1 &
  gateway=$!
  started+=("$gateway")
  until_true 200 ready_or_gone "$gateway" "$3" || true
  if ! kill -0 "$gateway" 2>/dev/null || ! ready "$3"; then
    tail -n 5 "$2" >&2
    fail "the gateway did not start, see $2"
  fi
}

ready() { curl -sf --max-time 2 -o /dev/null "http://127.0.0.1:$1/readyz"; }
ready_or_gone() { ready "$2" || ! kill -0 "$1" 2>/dev/null; }

# number NAME, text NAME: a member of the flat JSON object on standard input.
number() { sed -n "s/.*\"$1\": *\(-\{0,1\}[0-9][0-9]*\).*/\1/p"; }
text() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }

# usd NANO: exact, since money is never a float here either.
usd() {
  local sign=
  (($1 >= 0)) || sign=-
  printf '%s%d.%09d USD' "$sign" $((${1#-} / 1000000000)) $((${1#-} % 1000000000))
}
