#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared libraries show their own names only.
#   exports.sh MOEGEN SOURCE BUILD
failed=0
for pair in moegen:'moegen_' moegen_rt:'moegen_rt_'; do
  lib=$3/lib${pair%%:*}.so
  others=$(nm -D --defined-only "$lib" | awk '{ print $3 }' | grep -v -e "^${pair#*:}" -e '^MOEGEN_0' | cut -d@ -f1)
  [ -z "$others" ] || { echo "$lib shows: $others"; failed=1; }
done
nm -D --defined-only "$3/libmoegen.so" | grep -q ' moegen_kernel_get' || { echo "moegen_kernel_get is hidden"; failed=1; }
nm -D --defined-only "$3/libmoegen.so" | grep ' moegen_rt_' && { echo "libmoegen.so shows the runtime"; failed=1; }
exit $failed
