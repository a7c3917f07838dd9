#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A machine that cannot build the generator builds and installs moegen_rt alone, and runs kernels in plain C that were generated
# elsewhere: `native` does as if Lua and libyaml were missing; `aarch64` is made by a cross compiler and runs under qemu.
#   alone.sh MOEGEN SOURCE BUILD native|aarch64
set -u
moegen=$1 source=$2 kind=$4 runner=
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
set -- -G Ninja -DCMAKE_C_FLAGS=-O1 -DCMAKE_BUILD_TYPE=None
if [ "$kind" = aarch64 ]; then
  for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
    command -v $tool >/dev/null || { echo "no $tool"; exit 77; }
  done
  [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || { echo "no C library for aarch64"; exit 77; }
  set -- "$@" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc
  runner='qemu-aarch64 -L /usr/aarch64-linux-gnu'
fi

# quietly COMMAND...: its output only if it fails
quietly() {
  "$@" >"$tmp/log" 2>&1 || { tail -n 40 "$tmp/log"; echo "failed: $*"; exit 1; }
}

# ---- moegen_rt ----

PKG_CONFIG_LIBDIR=$tmp/none
export PKG_CONFIG_LIBDIR
if cmake -S "$source" -B "$tmp/forced" "$@" -DMOEGEN_GENERATOR=ON >"$tmp/log" 2>&1; then
  echo "MOEGEN_GENERATOR=ON passes without Lua"
  exit 1
fi
quietly cmake -S "$source" -B "$tmp/build" "$@" -DMOEGEN_WERROR=ON
grep -q 'moegen_rt alone: the generator needs' "$tmp/log" || { cat "$tmp/log"; echo "nobody says that it is moegen_rt alone"; exit 1; }
quietly cmake --build "$tmp/build"
quietly cmake --install "$tmp/build" --prefix "$tmp/usr"
for name in moegen moegen.h libmoegen.a libmoegen.so moegen.pc moegen_add_kernels.cmake; do
  [ -z "$(find "$tmp/usr" -type f -name $name)" ] || { echo "$name is installed"; exit 1; }
done

# ---- kernels over it ----

cat >"$tmp/spec.yaml" <<'END'
H: 40
kernels:
  experts: {kernel: moe_forward, dtype: bf16, I_TP: 24, E: 5, top_k: 2, block_size: 8}
  mlp: {kernel: mlp_forward, dtype: f32, I_TP: 24}
  mlp_back: {kernel: mlp_backward, dtype: f16, I_TP: 24}
  router: {kernel: router, op: forward, dtype: bf16, E: 5, top_k: 2, method: softmax_topk}
  layer: {kernel: moe_layer, dtype: f32, I_TP: 24, E: 5, top_k: 2, block_size: 8}
END
mkdir "$tmp/kernels"
for k in experts mlp mlp_back router layer; do
  quietly "$moegen" gen "$tmp/spec.yaml:$k" --set "name=k_$k" --target scalar -o "$tmp/kernels"
  "$moegen" explain "$tmp/spec.yaml:$k" --set "name=k_$k" --target scalar >"$tmp/plan" || exit 1
  # its parameters, tensors and sizes as C tables
  awk -v k="k_$k" '
    BEGIN { part = "params" }
    NR == 1 { family = substr($2, 2, length($2) - 2); print "#include \"" k ".h\""; print "static const char *const " k "_params[] = {"; next }
    /^tensors$/ { part = "tensors"; print "    0};\nstatic const struct arg " k "_arg[] = {"; next }
    /^plan/ { exit }
    part == "params" { print "    \"" $1 "\", \"" $2 "\"," }
    part == "tensors" { role = $0; sub(/: .*/, "", role); sub(/.*  /, "", role)
      print "    {\"" $1 "\", \"" $2 "\", " (role ~ /^in(, optional)?$/) ", " (role ~ /optional/) "}," }
    END { print "    {0}};"; print family >"'"$tmp/family"'" }' "$tmp/plan" >>"$tmp/kernels/table.h"
  { echo "static const char *const k_${k}_dim[] = {"
    sed -n 's/^    int64_t \([A-Z]\);.*/    "\1",/p' "$tmp/kernels/k_$k.h"
    echo "    0};"; } >>"$tmp/kernels/table.h"
  echo "    {\"$k\", \"$(cat "$tmp/family")\", k_$k, k_${k}_workspace, k_${k}_arg, k_${k}_dim, k_${k}_params}," >>"$tmp/rows"
done
{ echo "static const struct kernel kernels[] = {"; cat "$tmp/rows"; echo "};"; } >>"$tmp/kernels/table.h"
quietly cmake -S "$source/tests/alone" -B "$tmp/user" "$@" -DCMAKE_PREFIX_PATH="$tmp/usr" -DKERNELS="$tmp/kernels"
quietly cmake --build "$tmp/user"
# shellcheck disable=SC2086
$runner "$tmp/user/alone" | tee "$tmp/log"
grep -q '^5 kernels, 0 failures$' "$tmp/log"
