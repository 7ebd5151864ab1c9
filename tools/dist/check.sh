#!/usr/bin/env bash
# Whether the same commit gives the same bytes: everything is made twice, the second time with nothing compiled yet, in
# another time zone and under another umask. Minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
GO=${GO:-go} tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
"$GO" run . -o "$tmp/first"
(
	umask 077
	"$GO" build -o "$tmp/dist" .
	TZ=Asia/Tokyo GOCACHE=$tmp/cache "$tmp/dist" -o "$tmp/second"
)
diff "$tmp/first/SHA256SUMS" "$tmp/second/SHA256SUMS"
(cd "$tmp/second" && sha256sum -c --quiet SHA256SUMS)
cat "$tmp/first/SHA256SUMS"
echo "the same twice"
