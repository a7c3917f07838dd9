#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generated/*.svg are what the program draws: the command that each one names, of sizes that take a moment, gives the same marks and
# words but for numbers, targets and verdicts; nothing of them is cut off; and the README shows each.
#   pictures.sh MOEGEN SOURCE
set -u
command -v lua5.4 >/dev/null || { echo "no lua5.4"; exit 77; }
moegen=$(realpath -- "$1") failed=0 drawn=0
cd "$2" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

command_of() {
  sed -n 's/.* class="dim command">\(.*\)<.text>$/\1/p' "$1" | tr '\n' ' ' | sed "s/&#34;/\"/g; s/&#60;/</g; s/&#62;/>/g; s/&#38;/\&/g; s/ *\$//"
}

# Kinds of marks with their classes and words, once each; but for the machine's line and the command.
structure() {
  sed -nE '/class="dim (machine|command)"/d; s/^<([a-z]+) .* class="([^"]*)"\/?>(.*)$/\1 \2: \3/p' "$1" | sed -E \
    -e 's/<.text>$//; s/[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?/#/g; s/ +/ /g; s/: -/: /; s/# (ns|us|ms|s)\>/# s/g' \
    -e 's/: (avx#[a-z#_]*|amx|scalar)( [a-z#_]+)?( emulated)?, # thread/: TARGET, # thread/' \
    -e 's/: (avx#[a-z#_]*|amx|scalar) (bytes|scalar), /: TARGET, /' \
    -e 's/ (good|poor|same|unsure): / VERDICT: /; s/: (faster|slower|same|noisy)$/: VERDICT/' | sort -u
}

for svg in generated/*.svg; do
  drawn=$((drawn + 1))
  lua5.4 tests/picture.lua "$svg" || failed=1
  grep -q "^!\[[^]]*\]($svg)$" README.md || { echo "FAIL: the README does not show $svg"; failed=1; }
  said=$(command_of "$svg")
  case $said in
    "moegen "*" --plot $svg") ;;
    *) echo "FAIL: $svg names no command that draws it: '$said'"; failed=1; continue ;;
  esac
  said=${said#moegen } new=$tmp/${svg##*/}
  # shellcheck disable=SC2086 # words
  timeout 120 "$moegen" ${said%" --plot $svg"} --set H=64 --set I_TP=32 --seconds 0.001 --runs 2 --plot "$new" >"$tmp/out" 2>&1
  case $? in
    0) ;;
    3) echo "not here: $said"; continue ;;
    *) echo "FAIL: moegen $said"; head -n 20 "$tmp/out"; failed=1; continue ;;
  esac
  structure "$svg" >"$tmp/old"
  structure "$new" >"$tmp/fresh"
  diff -u "$tmp/old" "$tmp/fresh" || { echo "FAIL: $svg is stale. To draw it: moegen $said"; failed=1; }
done
[ $drawn -ge 2 ] || { echo "FAIL: $drawn pictures"; failed=1; }
exit $failed
