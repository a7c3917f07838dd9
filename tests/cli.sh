#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line: exit statuses, options anywhere, help everywhere, files whole or not at all.
#   cli.sh MOEGEN SOURCE
set -u
moegen=$(realpath -- "$1") root=$(realpath -- "$2") failed=0
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
spec=$root/tests/host/toy.yaml

# expect STATUS PATTERN ARG...: exit status, and a line of stdout or stderr that matches
expect() {
  want=$1 pattern=$2
  shift 2
  "$moegen" "$@" >out 2>err
  got=$?
  if [ $got != "$want" ] || ! cat out err | grep -q -e "$pattern"; then
    echo "FAIL moegen $*: exit status $got, expected $want and /$pattern/; it said:"
    cat out err
    failed=1
  fi
}
check() { "$@" || { echo "FAIL: $*"; failed=1; }; }

expect 0 '^usage' --help
expect 0 '^moegen [0-9]' --version
expect 2 '^usage'
expect 2 'is no command' frobnicate
for command in gen run check bench compare report explain list quantize pack cache schema completion; do
  expect 0 'examples:' "$command" --help
  expect 2 "no option '--frobnicate'" "$command" --frobnicate
done
for what in kernels activations dtypes formats targets keys; do expect 0 . list $what; done
expect 0 '"name"' list targets --json
expect 2 'there is no list of .frogs.' list frogs
expect 2 'list takes' list
expect 0 '^aux_loss.per  *one of tokens_and_choices, tokens' list keys moe_layer
expect 2 "did you mean 'moe_layer'" list keys moe_laier
expect 0 '^amx .*products: f32 fma, bf16 tile_dot, int8 tile_dot_i8; needs ' list targets
expect 2 'takes no .router.' list targets router
expect 2 'takes no .router.' list formats router
expect 0 '^mxfp4  *4.25 bits: e2m1 up to 6' list formats
expect 0 '"name": "nvfp4", "text": "4.5 bits' list formats --json

# A path and an override that try to be code.
evil='end */*/int evil; ??/
/*.yaml'
mkdir -p 'end */*/int evil; ??/
'
cp "$spec" "$evil"
expect 0 wrote gen "$evil:forward" --target scalar --set 'name=ok # */ int evil(void) { return 1; } /*' -o evil
check tcc -Wall -Werror -I"$root/runtime" -c evil/ok.c -o evil/ok.o
check sh -c '! nm evil/ok.o | grep evil'
expect 0 '"\$schema"' schema
expect 0 'complete -F' completion bash

expect 2 'cannot read no.yaml' gen no.yaml
expect 2 'takes one spec' gen
expect 2 "takes KEY=VALUE" gen "$spec:forward" --set top_k
expect 2 "H: -1 is not in" gen "$spec:forward" --set H=-1
expect 2 "kernel" gen "$spec:backwards"
expect 0 'wrote dir/toy_forward.c' gen -o dir --target scalar "$spec:forward"
check test -s dir/toy_forward.h
expect 0 'unchanged dir/toy_forward.c' gen "$spec:forward" -o dir --target scalar
expect 0 'int32_t toy_forward(' gen "$spec:forward" -o - --target scalar
expect 0 'x.c' gen "$spec:forward" --stem x -o dir --depfile dir/x.d --target scalar
check grep -q 'dir/x.c dir/x.h: .*toy.yaml' dir/x.d
expect 0 '"changed": false' gen "$spec:forward" --stem x -o dir --json --target scalar
expect 2 "stem: '../y' is a path, where a name is wanted" gen "$spec:forward" --stem ../y -o dir
check [ ! -e y.c ]
# a directory that cannot be is seen before kernels are made, of which this one is refused
expect 2 'cannot make directory no/b/: No such file' gen "$spec:forward" --set plan.nc=100 -o no/b/
expect 2 "dir/toy_forward.c is not a directory" gen "$spec:forward" --set plan.nc=100 -o dir/toy_forward.c
for option in depfile cflags; do expect 2 "$option: new/x.h is a file of the kernel" gen "$spec:forward" --stem x -o new --$option new/x.h; done
check [ ! -e new ]
sed '/^name/d' "$spec" >toy.c && cp toy.c kept
expect 2 'toy.c is a file that is read' gen toy.c:forward --stem toy --target scalar
check cmp toy.c kept
expect 0 . explain "$spec:forward"
expect 0 '^3  not supported on this machine' explain 3
expect 0 '"text": "MOEGEN_BAD_DATA  a tensor' explain MOEGEN_BAD_DATA --json
expect 2 'no status MOEGEN_BAD: known are MOEGEN_OK, MOEGEN_BAD_ARGUMENT, .*, MOEGEN_INTERNAL$' explain MOEGEN_BAD
expect 2 'no status 9: known are 0, 1, 2, 3, 4$' explain 9
cp "$spec" 9
cp "$spec" MOEGEN_SPEC
expect 0 . explain 9
expect 0 . explain MOEGEN_SPEC:forward
rm 9 MOEGEN_SPEC
expect 0 "2 ok, 0 failed" check "$spec:forward,forward" --target scalar --routing one --T 3
expect 2 "no kernel 'nope'" check "$spec:forward,nope" --target scalar

# what cannot be read is no check that passed, nor one that this machine has nothing for
mkdir -p folder
for no in no.yaml folder /dev/null "$spec:" "$spec:forward," ''; do expect 2 'error: ' check "$no"; done
expect 2 'takes one spec' check "$spec:forward" "$spec:forward"
expect 2 '--threads: 4294967297 is not in 0..1024' check "$spec:forward" --threads 4294967297
expect 2 "threads: '1x' is not in 1..1024" bench "$spec:forward" --vary threads=1x
expect 2 "threads: '4294967297' is not in 1..1024" bench "$spec:forward" --vary threads=4294967297
expect 2 '--vary T: more than 32 values' bench "$spec:forward" --vary T="$(seq -s, 33)"
long=$(printf '%0300d' 0)
expect 2 '--vary: an item of 300 bytes' bench "$spec:forward" --vary plan.tuned="$long,$long"
expect 2 '--cc: an item of 300 bytes' check "$spec:forward" --cc "gcc,$long"
# a variant whose name says what was not run
expect 2 '--vary T: --T says how many tokens' bench "$spec:forward" --vary T=4,8 --T 16
expect 2 '--vary T: --T says how many tokens' compare "$spec:forward" --vary T=4,8 --T 16
expect 2 '--vary T: twice' bench "$spec:forward" --vary T=4,8 --vary T=16
expect 2 '--vary T: twice' compare "$spec:forward" --vary T=4,8 --vary T=16
# results that would lie in a file "-", nowhere, or one in the place of another
for option in --depfile --cflags; do
  expect 2 "$option: a file, please" gen "$spec:forward" -o dir $option -
  expect 2 "$option goes with files; -o - prints the C" gen "$spec:forward" -o - $option made
done
expect 2 '--plot: a file, please' bench "$spec:forward" --plot -
expect 2 '--out: a file, please' tune "$spec:forward" -o -
expect 2 '--plot and --json: both both' bench "$spec:forward" --plot both --json both
check [ ! -e - ]
check [ ! -e made ]
check [ ! -e both ]
for option in --out --plot --target; do expect 2 "$option takes a value" tune "$spec:forward" $option ''; done

# Crossed products take rows of weights in squares: of one height.
expect 0 'wrote' gen "$root/tests/kernels/moe_backward.yaml:joined_few" --target amx --set dtype=bf16 -o crossed
check [ "$(grep -o 'crossed_[a-z]*_[0-9]*' crossed/*.c | sort -u | tr '\n' ' ')" = 'crossed_narrow_32 crossed_product_32 ' ]

expect 2 'takes --in FILE' run "$spec:forward"
expect 2 'no.safetensors' run "$spec:forward" --in no.safetensors --out o
case=$root/tests/vectors/Swish-PRE-nobias   # 70 tokens in 8 blocks
expect 2 "T is 70 (from 'hidden_states'), and the spec fixes 5" run "$case/spec.yaml" --in "$case/in.safetensors" --out fixed --set T=5
expect 2 "N is 8 (from 'token_position_to_id'), and the spec fixes 3" \
  run "$case/spec.yaml" --in "$case/in.safetensors" --out fixed --set N_blocks=3
check [ ! -e fixed ]
expect 0 'wrote' run "$case/spec.yaml" --in "$case/in.safetensors" --out fixed --set T=70 --set N_blocks=8
for dtype in $("$moegen" list dtypes | awk '{print $1}'); do # f32 inputs are rounded to it
  expect 0 'wrote' run "$case/spec.yaml" --in "$case/in.safetensors" --out "in-$dtype" --set T=70 --set N_blocks=8 --set dtype="$dtype"
done
expect 0 '"threads": 3,' run "$case/spec.yaml" --in "$case/in.safetensors" --out cores --json --set shard.cores=3
expect 0 '"threads": 1,' run "$case/spec.yaml" --in "$case/in.safetensors" --out one --json --set shard.cores=3 --threads 1
check cmp cores one
# results take the place of nothing that is read
mkdir -p model && cp "$case/in.safetensors" model/a.safetensors && cp "$case/spec.yaml" case.yaml && ln -s model/a.safetensors linked
for out in model/a.safetensors linked ./case.yaml; do
  expect 2 "--out: $out is a file that is read" run case.yaml --in model --out "$out"
  expect 2 "--out: $out is a file that is read" pack case.yaml --in model/a.safetensors --out "$out"
done
cp "$spec" toy.yaml
expect 2 '--depfile: toy.yaml is a file that is read' gen toy.yaml:forward --depfile toy.yaml
expect 2 '--json: toy.yaml is a file that is read' bench toy.yaml:forward --json=toy.yaml
expect 2 '--plot: toy.yaml is a file that is read' bench toy.yaml:forward --plot toy.yaml
check cmp "$spec" toy.yaml
check cmp "$case/in.safetensors" model/a.safetensors
ln -s one link
expect 0 'wrote' run "$case/spec.yaml" --in "$case/in.safetensors" --out link
check test -L link
# outputs of one number, a sum that cancels; rows that are one number times others
expect 0 '^2 ok, 0 failed' check "$root/tests/kernels/moe_backward.yaml:tiny,post_norm_H_1" --T 9 --threads 1
expect 0 '^1 ok, 0 failed' check "$root/tests/kernels/router.yaml:back_norm_wide" --set dtype=bf16 --T 9 --seed 5 --threads 1
expect 0 '^1 ok, 0 failed' check "$root/tests/kernels/moe_forward.yaml:transposed" --set dtype=f32 --set activation=gelu --set H=33 --set I_TP=1 --routing one --T 2000 --threads 1
expect 0 ' 0 failed' check "$spec:forward" --T 9 --routing uniform --target scalar
expect 0 '"result": "ok"' check "$spec:forward" --T 9 --routing uniform --target scalar --json
# tensors that the kernel does not take may be of any dtype
printf '\072\0\0\0\0\0\0\0{"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}xx' >mask.safetensors
expect 0 "^note: tensor 'mask' is no argument" run "$case/spec.yaml" --in "$case/in.safetensors" --in mask.safetensors --out masked -v
# a tensor of two files is of neither
mkdir copies && cp "$case/in.safetensors" copies/x.safetensors
expect 2 "^error: tensor '[a-z_]*' is in two files: copies/x.safetensors and $case/in.safetensors" \
  run "$case/spec.yaml" --in copies --in "$case/in.safetensors" --out twice --set T=70 --set N_blocks=8
cp copies/x.safetensors copies/y.safetensors
expect 2 "is in two files: copies/x.safetensors and copies/y.safetensors" run "$case/spec.yaml" --in copies --out twice --set T=70 --set N_blocks=8
check [ ! -e twice ]
echo '{kernel: moe_layer, op: backward, dtype: f32, H: 256, I_TP: 256, E: 4, top_k: 4, block_size: 64}' >layer.yaml
echo '{kernel: moe_forward, dtype: f32, norm: layer, gated: false, norm_eps: 0, H: 8, I_TP: 1, E: 2, top_k: 2, block_size: 4, skip_token: true}' >undefined.yaml
# a sum over all tokens, of which the reference of much work computes a few; then 0 / 0 in every element
expect 0 ' router_weight_grad  *1  *-  *-  *-  *not compared$' check layer.yaml --T 640 --routing uniform --threads 1
check grep -q '^1 ok, 0 failed' out
check grep -q ' hidden_states_grad .* ok$' out
# choices that rounding decides: where these tokens lie, and others beside them
echo '{kernel: moe_layer, dtype: f32, H: 40, I_TP: 24, E: 8, block_size: 8, softcap: 0.015, checkpoint: save, affinity: {scale: none}}' >capped.yaml
expect 0 ' block_to_expert  *1 .* not compared$' check capped.yaml --T 60 --routing uniform --target scalar --threads 1
check grep -q ' output .* ok$' out
expect 1 'nothing to compare' check undefined.yaml --T 9 --routing uniform --target scalar
check grep -q '^0 ok, 1 failed' out
expect 1 '"compared": 0, "rel_error": null,.*"result": "not compared"' check undefined.yaml --T 9 --routing uniform --target scalar --json
expect 3 'cannot start nocc' check "$spec:forward" --T 9 --routing one --target scalar --cc gcc,nocc
for cc in false true; do
  expect 2 "compiler $cc makes nothing of a kernel" check "$spec:forward" --T 9 --routing one --target scalar --cc $cc
  check sh -c '! grep -i bug err'
done
printf '#!/bin/sh\necho "$0: error: no licence" >&2\nexit 1\n' >poorcc; chmod +x poorcc
expect 2 'compiler ./poorcc makes nothing of a kernel, and says: ./poorcc: error: no licence' check "$spec:forward" --T 9 --routing one \
  --target scalar --cc ./poorcc
# what the environment says, with the variable's name
not_so() { expect 2 "MOEGEN_THREADS: '$1' is not a whole number in 0..1024" check "$spec:forward" --T 3 --routing one --target scalar; }
for threads in 1.5 -1 two 1025 99999999999999999999 '2 ' 0x2; do MOEGEN_THREADS=$threads not_so "$threads"; done
for threads in 2 0 ''; do MOEGEN_THREADS=$threads expect 0 '^1 ok' check "$spec:forward" --T 3 --routing one --target scalar; done
MOEGEN_THREADS=3 expect 0 '"threads": 3,' bench "$spec:forward" --T 9 --runs 1 --json --target scalar
MOEGEN_THREADS=x expect 0 '"threads": 2,' bench "$spec:forward" --T 9 --runs 1 --json --target scalar --threads 2
cp "$spec" here.yaml
for tree in folder no-folder; do
  for command in 'check here.yaml:forward' 'list kernels' schema; do
    MOEGEN_TEMPLATE_DIR=$tree expect 2 "MOEGEN_TEMPLATE_DIR: $tree .*no tree of moegen's sources" $command
  done
done
expect 2 'routing' check "$spec:forward" --T 9 --routing sideways
expect 2 'T: 2147483648 is not in 1..' check "$spec:forward" --T 2147483648
check sh -c '! grep FAIL err'
expect 2 "target: 'frogs' is not one of" check "$spec:forward" --T 9 --target scalar,frogs
check sh -c '! grep FAIL err'
for n in x 1.5 ''; do expect 2 "threads: '$n' is not a whole number >= 0" check "$spec:forward" --threads "$n"; done
# what would be as if it were not given
expect 2 "T: '0' is not a whole number >= 1" check "$spec:forward" --T 0
expect 2 "runs: '0' is not a whole number >= 1" bench "$spec:forward" --runs 0
for command in 'bench --seconds' 'tune --budget' 'compare --budget'; do
  for n in 0 0s 1m -1 nan; do expect 2 "'$n' is not a number of seconds > 0" ${command% *} "$spec:forward" "${command#* }" "$n"; done
done
expect 2 '[-]-json takes no file here: run prints its JSON' run "$spec:forward" --in in --out out --json=run.json
expect 2 '[-]-json takes no file here: check prints its JSON' check "$spec:forward" --json=check.json
expect 0 '"share_of_peak"' bench "$spec:forward" --T 9 --runs 1 --json --target scalar
expect 0 '"threads": 3,' bench "$spec:forward" --T 9 --runs 1 --json --target scalar --set shard.cores=3
expect 0 '"threads": 2,' bench "$spec:forward" --T 9 --runs 1 --json --target scalar --set shard.cores=3 --threads 2
expect 0 '"threads": 4,' bench "$spec:forward" --T 9 --runs 1 --json --target scalar --set shard.cores=3 --vary threads=4
expect 0 'plan.run=999 is left out' bench "$spec:forward" --T 9 --runs 1 --target scalar --vary plan.direct_k=16 --vary plan.run=4,999 --set H=1000 --set I_TP=8
expect 2 'no variant is left' bench "$spec:forward" --T 9 --runs 1 --target scalar --vary plan.t_block=16,32
expect 2 'weights.layout = transposed (--set)' bench "$spec:forward" --T 9 --runs 1 --set weights.dtype=int4 --set weights.layout=transposed
expect 0 '^  threads  *3 ' explain "$spec:forward" --set shard.cores=3
expect 0 '^  DOWN  *down_proj_weight  *to 4  *sweep  *fma ' explain "$spec:forward"
grouped=$root/tests/kernels/grouped_gemm.yaml   # a target that rounds what the kernel gives
expect 0 '^  target  *avx512_bf16 asked for' explain "$grouped:dW" --target avx512_bf16 --set dtype=bf16
expect 0 '^  target  *avx512 .*no instruction multiplies pairs of f32' explain "$grouped:dW" --target avx512_bf16 --set dtype=f32
expect 0 'from disk' bench "$spec:forward" --latency

# what is too long is refused while it is read; a file that may not grow is a complaint
expect 2 'more than 262144 bytes, the limit' gen /dev/zero
limit=500000 # the sanitizers' shadow memory has no room in it
(ulimit -v $limit; "$moegen" --version) >/dev/null 2>&1 || limit=unlimited
yes '# x' | head -c 200000000 | (ulimit -v $limit; "$moegen" gen -) 2>err
check [ $? = 2 ]
check grep -q 'more than 262144 bytes' err
head -c 8 /dev/zero | tr '\0' '\1' >folder/x.json
expect 2 'cannot read folder: Is a directory' gen "$spec:forward" -o - --set plan.tuned=folder
expect 2 'cannot read /dev/null: not a regular file' gen "$spec:forward" -o - --set plan.tuned=/dev/null
expect 2 'is not a regular file' run "$case/spec.yaml" --in /dev/zero --out o
(ulimit -f 1; "$moegen" gen -o small "$spec:forward" --target scalar) >/dev/null 2>err
check [ $? = 2 ]
check grep -q 'cannot write small/toy_forward.c: File too large' err
check [ -z "$(ls small)" ]
(ulimit -f 1; "$moegen" run "$case/spec.yaml" --in "$case/in.safetensors" --out fixed2 --set T=70 --set N_blocks=8) >/dev/null 2>err
check [ $? = 2 ]
check grep -q 'cannot write: File too large' err

MOEGEN_CACHE_DIR=$spec
export MOEGEN_CACHE_DIR
expect 2 'note: .*toy.yaml: cannot be used, .*(Not a directory)' cache list
MOEGEN_CACHE_DIR=$tmp/cache
expect 0 "$tmp/cache" cache path
expect 0 . check "$spec:forward" --T 3 --routing one --target scalar --quiet
expect 0 '1 entries' cache list
expect 0 ' 0 damaged' cache verify
expect 2 'is not a size' cache prune --max 3X
expect 2 'cache prune takes --max SIZE' cache prune --max nan
expect 0 'removed 0' cache prune --max 99999999999999999999T
expect 0 'removed 0' cache prune --max inf
expect 0 'removed 1' cache clear
[ $failed = 0 ] && echo "all right"
exit $failed
