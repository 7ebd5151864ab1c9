#!/usr/bin/env bash
# gotest.sh [-C DIR] FLAGS... PACKAGES...: go test. Where SKEP_GATE names a directory, gotestsum runs it: what fails
# is run up to two times more, what then passes is named in $SKEP_GATE/flaky; a race report or a panic, and a package
# that ends badly without a failed test, are red at once. Packages are the arguments that begin with ./ or with the module's name.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
GO=${GO:-go}
if [[ ${1:-} == -C ]]; then
	cd "$2"
	shift 2
fi
if [[ -z ${SKEP_GATE:-} ]]; then
	exec "$GO" test "$@"
fi
flags=() packages=()
for a in "$@"; do
	case $a in
	./* | github.com/skepkv/*) packages+=("$a") ;;
	*) flags+=("$a") ;;
	esac
done
gotestsum=$("$GO" tool -modfile="$top/tools/dev/go.mod" -n gotestsum)
again=$(mktemp "$SKEP_GATE/again.XXXXXX") events=$(mktemp "$SKEP_GATE/events.XXXXXX") said=$(mktemp "$SKEP_GATE/said.XXXXXX")
code=0
"$gotestsum" --format standard-quiet --no-color --hide-summary skipped --jsonfile-timing-events "$events" \
	--rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report="$again" \
	--packages="${packages[*]}" -- "${flags[@]}" 2>&1 | tee "$said" || code=$?
word=FLAKY
((code == 0)) || word=AGAIN
sed "s/^/$word /" "$again" | tee -a "$SKEP_GATE/flaky"

# What is green only by its second run is red all the same in two cases that gotestsum does not know. A package that
# ends badly though no test of it failed (goroutines are left, say) is "run again" without a test. And a race or a panic
# of a process that a test began is told within that test's message.
red() {
	code=1
	printf '\n=== Failed\n=== FAIL: %s\n%s\n' "$1" "$2"
}
if ((code == 0)); then
	alone=$(awk '{
		if (!match($0, /"Package":"[^"]*"/)) next
		package = substr($0, RSTART + 11, RLENGTH - 12)
		failed = /"Action":"fail"/
		if (/"Test":"/) { if (failed) tests[package] = 1; next }
		if (failed && !tests[package]) print package
		delete tests[package]
	}' "$events")
	[[ -z $alone ]] || red "$alone" "ended badly though none of its tests failed: $(tail -n 40 "$said")"
fi
if ((code == 0)) && told=$(grep -nE -A 15 'DATA RACE|panic: |fatal error: ' "$said"); then
	red "a race or a panic, in a test that passed when it was run again" "$(head -n 50 <<<"$told")"
fi
rm -f "$again" "$said"
exit $code
