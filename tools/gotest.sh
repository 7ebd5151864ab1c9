#!/usr/bin/env bash
# gotest.sh [-C DIR] FLAGS... PACKAGES...: go test. Where SKEP_GATE names a directory, gotestsum runs it: what fails
# is run up to two times more, what then passes is named in $SKEP_GATE/flaky, and a race report or a panic is never
# run again. Packages are the arguments that begin with ./ or with the module's name.
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
again=$(mktemp "$SKEP_GATE/again.XXXXXX")
code=0
"$gotestsum" --format standard-quiet --no-color --hide-summary skipped --jsonfile-timing-events "$(mktemp "$SKEP_GATE/events.XXXXXX")" \
	--rerun-fails=2 --rerun-fails-max-failures=5 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race --rerun-fails-report="$again" \
	--packages="${packages[*]}" -- "${flags[@]}" || code=$?
if ((code == 0)) && [[ -s $again ]]; then
	sed 's/^/FLAKY /' "$again" | tee -a "$SKEP_GATE/flaky"
fi
rm -f "$again"
exit $code
