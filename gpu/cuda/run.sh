#!/bin/sh
# Runs skep's CUDA tests from the folder that `make gpu-bundle` made, on a machine with an
# NVIDIA driver (glibc 2.34 or newer; no CUDA toolkit, no Go). It reads and writes nothing
# outside this folder but standard output, needs no root, takes at most 1 GiB of GPU memory,
# and runs a few minutes. With the argument "fake" it runs on the fake driver instead, which
# needs no GPU. Of this folder it writes libskep.so.1, unpacked, and a directory for what the C programs
# store (300 MB, removed at the end).
set -u
cd "$(dirname "$0")" || exit 1
if [ "${1:-}" = fake ]; then
	export LD_LIBRARY_PATH="$PWD/fake"
else
	command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=index,name,driver_version,memory.total,pcie.link.gen.max --format=csv
fi
echo "== GPUDirect Storage (not used by skep)"
ls /proc/driver/nvidia-fs 2>/dev/null || echo "no kernel module nvidia-fs"
echo "== the suite"
./cuda.test -test.v -test.timeout 10m
status=$?
echo "== the C interface: engines whose paged cache is in GPU memory"
gzip -dc libskep.so.1.gz >libskep.so.1 || status=1
for engine in cuda large; do
	dir=$(mktemp -d "$PWD/stored.XXXXXX") || exit 1
	"./engine-$engine" "$dir" || status=1
	rm -rf "$dir"
done
echo "== copies (GB/s is bytes over time; 'in/pinned' is the link's limit)"
./cuda.test -test.run '^$' -test.bench Copies -test.benchtime 2s
exit $status
