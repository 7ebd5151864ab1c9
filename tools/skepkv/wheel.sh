#!/usr/bin/env bash
# Builds bin/wheel/skepkv-*.whl, the Python package with libskep.so.1 inside; with "test" installs it in a clean environment of
# each Python at hand and runs its tests and those of tools/examples/tiny against bin/skep. What is missing is named: with
# "test" that is no error, else there is no wheel, and it is one. It takes minutes: pip fetches setuptools and zig.
# With zig's C compiler (pip install ziglang) the library runs on glibc 2.17 and later; else on systems like this one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mode=${1:-} GO=${GO:-go} PYTHON=${PYTHON:-python3} out=$PWD/bin/wheel arch=$(uname -m)
trap 'rm -rf "$out"/{venv,clean,src}' EXIT

skip() {
	if [[ $mode = test ]]; then
		echo "skipped: $1"
		exit 0
	fi
	echo "no wheel: $1" >&2
	exit 1
}

build() {
	[[ $(uname -s) = Linux ]] || skip "the wheel is for Linux, and this is $(uname -s)"
	command -v "$PYTHON" >/dev/null || skip "no $PYTHON"
	mkdir -p "$out"
	[[ -x $out/venv/bin/pip ]] || "$PYTHON" -m venv "$out/venv" >/dev/null 2>&1 || skip "$PYTHON has no venv or no pip"
	"$out/venv/bin/pip" install -q --disable-pip-version-check 'setuptools>=77' 2>"$out/pip.log" ||
		skip "pip cannot install setuptools: no network? ($out/pip.log)"

	local platform=manylinux_2_17_$arch cc
	if "$out/venv/bin/pip" install -q --disable-pip-version-check ziglang 2>"$out/pip.log"; then
		cc="$out/venv/bin/python -m ziglang cc -target $arch-linux-gnu.2.17"
	else
		echo "pip cannot install ziglang ($out/pip.log): built by the system's C compiler, for systems like this one"
		platform=linux_$arch cc=${CC:-cc}
		command -v "${cc%% *}" >/dev/null || skip "no C compiler"
	fi
	rm -rf "$out/src" && mkdir -p "$out/src" && rm -f "$out"/*.whl
	cp -r tools/skepkv/pyproject.toml tools/skepkv/setup.py tools/skepkv/README.md tools/skepkv/src "$out/src/"
	GOFLAGS="$("$GO" env GOFLAGS) -buildvcs=auto" CC=$cc GO=$GO tools/libskep/build.sh "$out/src/src/skepkv" '-s -w'
	rm "$out/src/src/skepkv/libskep.so" # a wheel has no links
	SKEPKV_VERSION=$("$GO" version -m "$out/src/src/skepkv/libskep.so.1" | awk '$1 == "mod" {print $3}') \
		SKEPKV_PLATFORM=$platform "$out/venv/bin/pip" wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$out" "$out/src"
	ls -sh "$out"/*.whl
}

check() {
	[[ -x bin/skep ]] || skip "no bin/skep; make build makes it"
	local p wheel version done=""
	wheel=$(echo "$out"/*.whl)
	# Else what pyenv has in PATH runs none but one version.
	! command -v pyenv >/dev/null || export PYENV_VERSION="$(pyenv version-name):$(pyenv versions --bare | paste -sd:)"
	for p in "$PYTHON" python3.{10..14}; do
		"$p" -c '' 2>/dev/null || { echo "skipped: no $p"; continue; }
		version=$("$p" -c 'import sys; print(sys.version.split()[0])')
		[[ $done != *" $version "* ]] || continue
		done+=" $version "
		rm -rf "$out/clean"
		"$p" -m venv "$out/clean" >/dev/null 2>&1 || { echo "skipped: $p has no venv or no pip"; continue; }
		"$out/clean/bin/pip" install -q --disable-pip-version-check --no-index --no-deps "$wheel"
		"$out/clean/bin/python" -c 'import sys, skepkv; print(sys.version.split()[0], skepkv.__file__, skepkv.__version__)'
		env -u SKEPKV_LIBRARY -u PYTHONPATH SKEP_BINARY="$PWD/bin/skep" "$out/clean/bin/python" -B -m unittest discover -s tools/skepkv/tests
		"$out/clean/bin/pip" install -q --disable-pip-version-check numpy 2>"$out/pip.log" ||
			{ echo "skipped: the tiny engine, which needs numpy ($out/pip.log)"; continue; }
		env -u SKEPKV_LIBRARY -u PYTHONPATH SKEP_BINARY="$PWD/bin/skep" "$out/clean/bin/python" -B -m unittest discover -s tools/examples/tiny
	done
}

build
if [[ $mode = test ]]; then
	check
fi
