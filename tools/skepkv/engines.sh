#!/usr/bin/env bash
# Runs the connectors' tests under the engines' own classes, without a GPU: wheels of LMCache, SGLang and vLLM
# (engines.txt), and PyTorch with stand-ins for CUDA's libraries (torch_stub.py). Once, 4.1 GB go into SKEPKV_ENGINES
# (~/.cache/skepkv-engines). Where they cannot be had it says so, and that is no error; a test that is skipped is one.
# With SKEPKV_NEWEST set, LMCache, SGLang and vLLM are the newest that pip finds, this week.
# Needs bin/skep and bin/libskep.so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PYTHON=${PYTHON:-python3} here=tools/skepkv

skip() {
	echo "skipped: $1"
	exit 0
}

[[ $(uname -sm) = "Linux x86_64" ]] || skip "the engines' wheels are for Linux on x86_64, and this is $(uname -sm)"
"$PYTHON" -c '' 2>/dev/null || skip "no $PYTHON"
for tool in gcc nm readelf; do
	command -v $tool >/dev/null || skip "no $tool, which PyTorch's stand-ins are made with"
done
newest=${SKEPKV_NEWEST:+newest-$(date +%G-%V)-} # of this week
sum=$newest$({ "$PYTHON" -V; cat $here/engines.txt $here/torch_stub.py; } | sha256sum | cut -c1-16)
env=${SKEPKV_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/skepkv-engines}/$sum
if [[ ! -e $env/ready ]]; then
	echo "installing the engines into $env"
	if [[ $newest ]]; then # those of other weeks
		rm -rf "$(dirname "$env")"/newest-*
	fi
	rm -rf "$env" && mkdir -p "$env"
	"$PYTHON" -m venv "$env/venv" >/dev/null 2>&1 || skip "$PYTHON has no venv or no pip"
	"$env/venv/bin/pip" install -q --disable-pip-version-check --no-deps -r $here/engines.txt >"$env/pip.log" 2>&1 ||
		skip "pip cannot install the engines ($env/pip.log): $(grep -m1 ERROR "$env/pip.log" || tail -n 1 "$env/pip.log")"
	if [[ $newest ]]; then
		"$env/venv/bin/pip" install -q --disable-pip-version-check --no-deps -U lmcache sglang vllm >"$env/pip.log" 2>&1 ||
			skip "pip cannot install the newest engines ($env/pip.log): $(tail -n 1 "$env/pip.log")"
		"$env/venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -E '^(lmcache|sglang|vllm) ' |
			tr -s ' ' '=' >"$env/newest"
	fi
	torch=$("$env/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/torch
	"$env/venv/bin/python" $here/torch_stub.py "$torch" "$env/stub"
	touch "$env/ready"
fi
if [[ $newest ]]; then
	while read -r version; do
		grep -qx "${version/=/==}" $here/engines.txt && echo "$version is the pinned one" || echo "$version is newer than the pinned one"
	done <"$env/newest"
fi
export LD_LIBRARY_PATH=$env/stub PYTHONPATH=$PWD/$here/src SKEPKV_LIBRARY=$PWD/bin/libskep.so SKEP_BINARY=$PWD/bin/skep
if [[ ${1:-} = bench ]]; then # bench sglang|vllm|lmcache SOCKET DIR, or kvstash: bench.py
	exec "$env/venv/bin/python" -B -W ignore $here/bench.py "${@:2}"
fi
exec "$env/venv/bin/python" -B -W ignore $here/tests/engines.py "$@"
