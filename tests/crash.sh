#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A kernel that crashes under `moegen check` is a failed check that names target, spelling, threads and case, and all that does not
# crash is still checked. The crashes come from a copy of the templates: in plain C the MLP writes to page 0 for one token, on any
# team that has a second thread; the index builder divides by zero.
#   crash.sh MOEGEN SOURCE
set -u
moegen=$1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/gen" && cp -R "$2/gen/lua" "$tmp/gen/" && cp -R "$2/templates" "$tmp/" || exit 1
MOEGEN_TEMPLATE_DIR=$tmp MOEGEN_CACHE_DIR=$tmp/cache
export MOEGEN_TEMPLATE_DIR MOEGEN_CACHE_DIR
ulimit -c 0

# inject TEMPLATE TEXT: after the line of the kernel's body that knows the arguments
inject() {
  awk -v text="$2" '{ print } /^static int32_t on_rank\(/ { inside = 1 }
    inside && / \*a = \(|begin_work\(/ { print text; inside = 0; done = 1 }
    END { exit !done }' "$tmp/templates/$1.c.in" >"$tmp/new" && mv "$tmp/new" "$tmp/templates/$1.c.in" || exit 1
}
inject shared/call '@ if plan.spelling == "scalar" and spec.kernel == "mlp_forward" then
    if (w.args->S == 1 && worker && worker->rank == 1) {
        *(volatile int32_t *)(uintptr_t)(w.args->S - 1) = 1;
    }
@ end'
inject moe_index '    if (a->T > 0) {
        *(volatile int32_t *)(uintptr_t)(a->T - a->T) = 1;
    }'

cat >"$tmp/spec.yaml" <<END
dtype: f32
kernels:
  first: {kernel: mlp_forward, H: 24, I_TP: 20}
  second: {kernel: moe_index, top_k: 2, E: 4, block_size: 8}
  third: {kernel: mlp_backward, H: 24, I_TP: 20}
END
# dtype is no key of the index builder
sed -i -e '/^dtype/d' -e 's/H: 24/dtype: f32, H: 24/' "$tmp/spec.yaml"

failed=0
expect() { # TEXT FILE
  grep -q -e "$1" "$2" || { echo "not in $2: $1"; failed=1; }
}
"$moegen" check "$tmp/spec.yaml" >"$tmp/out" 2>"$tmp/err"
status=$?
[ $status = 1 ] || { echo "status $status where one of three kernels crashes"; failed=1; }
expect '^FAIL spec_second --target [a-z0-9_]* --spelling [a-z]* --threads 1, .*: the kernel crashed: ' "$tmp/err"
expect '^first .* ok$' "$tmp/out"
expect '^second .*FAIL: crashed on ' "$tmp/out"
expect '^third .* ok$' "$tmp/out"
expect '^2 ok, 1 failed, 0 not run$' "$tmp/out"

"$moegen" check "$tmp/spec.yaml:first" --target scalar,auto --json >"$tmp/json" 2>"$tmp/err2"
status=$?
if grep -q '"target": "scalar", "spelling": "scalar"' "$tmp/json" && ! grep -q '"spelling": "bytes"' "$tmp/json"; then
  : # a machine without vectors: there is nothing else
else
  expect '"target": "scalar".*"result": "fail", "why": "crashed on .*T=1[, ].*--threads 3' "$tmp/json"
  expect '"spelling": "bytes".*"result": "ok"' "$tmp/json"
fi
[ $status = 1 ] || { echo "status $status where one of two spellings crashes"; failed=1; }
expect '^FAIL spec_first --target scalar --spelling scalar --threads 3, .*: the kernel crashed: ' "$tmp/err2"
[ "$(grep -c '^FAIL' "$tmp/err2")" = 1 ] || { echo "more than one complaint:"; failed=1; }
[ $failed = 0 ] || cat "$tmp/out" "$tmp/err" "$tmp/json" "$tmp/err2"
exit $failed
