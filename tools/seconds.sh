#!/usr/bin/env bash
# seconds: how many seconds a time like 90s, 10m or 1h is, for make.
set -euo pipefail
[[ ${1-} =~ ^([0-9]+)([smh])$ ]] || { echo "${1-} must be a time like 90s, 10m or 1h" >&2; exit 2; }
case ${BASH_REMATCH[2]} in
	s) echo "${BASH_REMATCH[1]}" ;;
	m) echo $((BASH_REMATCH[1] * 60)) ;;
	h) echo $((BASH_REMATCH[1] * 3600)) ;;
esac
