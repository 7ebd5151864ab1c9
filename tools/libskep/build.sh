#!/usr/bin/env bash
# Builds DIR/libskep.so.1, and DIR/libskep.so, a link to it by which programs are linked: build.sh DIR [FLAGS [LINKER]],
# with flags of the go command's linker and of the C compiler's. GO and CC are the compilers.
# All that is exported is what exports.map names, under the version of its first line. Both stay as long as a program
# that was linked with the library runs with the next one; one that it does not run with is libskep.so.2.
set -euo pipefail
dir=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "$dir"
map=$PWD/tools/libskep/exports.map sum=$(cksum <"$map" | tr -d ' ')
# The go command does not read the map: by its checksum, given to nobody, it sees that the library is an old one.
"${GO:-go}" build -buildmode=c-shared -o "$dir/libskep.so.1" \
	-ldflags "${2:-} -X main.exports=$sum -extldflags '-Wl,-soname,libskep.so.1 -Wl,--version-script=$map ${3:-}'" \
	./tools/libskep
rm -f "$dir/libskep.so.h"
ln -sf libskep.so.1 "$dir/libskep.so"
