#!/usr/bin/env bash
# Writes src/skep.rs from skep.h: bindings.sh [FILE]. It takes bindgen (cargo install bindgen-cli) and libclang.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bindgen ../../libskep/skep.h --allowlist-function 'skep_.*' --allowlist-type 'skep_.*' --allowlist-var 'SKEP_.*' \
	--no-doc-comments --disable-header-comment --rust-target 1.77 --rust-edition 2021 -o "${1:-src/skep.rs}" \
	--raw-line '//! All of skep.h: written by bindings.sh.' --raw-line '' \
	--raw-line '#![allow(non_camel_case_types, dead_code)]' --raw-line '' \
	--raw-line '#[link(name = "skep")]' --raw-line 'extern "C" {}' -- -isystem "$("${CC:-cc}" -print-file-name=include)"
