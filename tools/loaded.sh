#!/usr/bin/env bash
# loaded.sh RUNS: make test, RUNS times, none of it cached, on a machine that has too much to do: beside stress-ng,
# or, where that is missing, beside as much work of the shell's own. One line a run in bin/loaded/runs.txt, the output
# of each beside it. Fails when a run was red.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runs=${1:-20}
out=bin/loaded
mkdir -p "$out"
scratch=$(mktemp -d)
load=()
end() {
	for p in "${load[@]}"; do kill "$p" 2>/dev/null; done
	wait 2>/dev/null
	rm -rf "$scratch"
}
trap end EXIT
trap 'exit 130' INT TERM

if command -v stress-ng >/dev/null; then
	stress-ng --cpu 8 --io 4 --temp-path "$scratch" --quiet &
	load+=($!)
	with="stress-ng --cpu 8 --io 4"
else
	for _ in {1..8}; do
		(while :; do :; done) &
		load+=($!)
	done
	for i in {1..4}; do
		(while dd if=/dev/zero of="$scratch/$i" bs=1M count=64 conv=fsync status=none; do :; done) &
		load+=($!)
	done
	with="8 loops and 4 writers of the shell's own"
fi

red=0
for ((i = 1; i <= runs; i++)); do
	began=$(date +%s)
	if make --no-print-directory test TESTFLAGS="-count=1 -timeout 30m" >"$out/$i.log" 2>&1; then
		what=green
	else
		what=RED
		red=$((red + 1))
	fi
	printf '%s %s run %d of %d: %s in %d s beside %s\n' "$(date -u +%FT%TZ)" "$(git rev-parse --short HEAD 2>/dev/null || echo -)" \
		"$i" "$runs" "$what" $(($(date +%s) - began)) "$with" | tee -a "$out/runs.txt"
	[[ $what == green ]] || grep -E '^(--- FAIL|FAIL|panic)' "$out/$i.log"
done
echo "$red of $runs red"
exit $((red > 0))
