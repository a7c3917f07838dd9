#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# An application builds and runs against an installed copy; a bad spec fails its build with file:line:col; nothing is
# generated twice without need; what README says of pkg-config works.
#   host.sh MOEGEN SOURCE BUILD
set -eu
command -v c++ >/dev/null || { echo "no C++ compiler"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cmake --install "$3" --prefix "$tmp/usr" --component moegen >/dev/null
cp -r "$2/tests/host" "$tmp/src"
cmake -G Ninja -S "$tmp/src" -B "$tmp/build" -DCMAKE_PREFIX_PATH="$tmp/usr" >/dev/null
cmake --build "$tmp/build"
"$tmp/build/host"
"$tmp/build/host_static"
cmake --build "$tmp/build" | grep -q 'no work to do' || { echo "a second build does something"; exit 1; }
touch "$tmp/src/toy.yaml"
cmake --build "$tmp/build" | tee "$tmp/again" | grep -q 'Generating toy_forward' || { echo "a new spec is not seen"; exit 1; }
if grep -q 'Building C object.*toy_forward' "$tmp/again"; then echo "the same C is compiled again"; exit 1; fi
sed -i 's/^I_TP: 40/I_TP: fourty/' "$tmp/src/toy.yaml"
if cmake --build "$tmp/build" >"$tmp/log" 2>&1; then echo "a bad spec builds"; exit 1; fi
grep -q 'toy.yaml:4:7: error: ' "$tmp/log" || { cat "$tmp/log"; exit 1; }
PKG_CONFIG_PATH=$(dirname "$(find "$tmp/usr" -name moegen.pc)")
export PKG_CONFIG_PATH
pkg-config --validate moegen moegen_rt
printf '#include <moegen.h>\nint main(void) { return moegen_version() != 100; }\n' >"$tmp/x.c"
# shellcheck disable=SC2046
cc "$tmp/x.c" -o "$tmp/x" $(pkg-config --cflags --libs moegen) -Wl,-rpath,"$(pkg-config --variable=libdir moegen)"
"$tmp/x"
# README's program, in a folder whose name has a space.
mkdir -p "$tmp/a folder/build"
cp -R "$tmp/usr" "$tmp/a folder/build/usr"
sed -n '/^cat > build\/facts.c/,/^cc build\/facts.c/p' "$2/README.md" >"$tmp/facts.sh"
(cd "$tmp/a folder" && sh -eu "$tmp/facts.sh") | tee "$tmp/facts"
grep -q '^moe_forward for [a-z0-9_]*, from [a-z]* in' "$tmp/facts" && grep -q '^  output$' "$tmp/facts" || { echo "README's program says something else"; exit 1; }
