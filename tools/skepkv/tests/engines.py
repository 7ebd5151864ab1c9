"""Runs the tests under the engines' own classes, or those that are named. A test that is skipped is a failure here."""

import os
import sys

# PyTorch asks for symbols of CUDA's libraries when they are called, which they never are.
sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)

import unittest  # noqa: E402

names = sys.argv[1:] or [
    "test_addresses_real",
    "test_events_real",
    "test_vllm_real",
    "test_vllm_trouble_real",
    "test_sglang_real",
    "test_lmcache_real",
    "test_lmcache_resp_real",
    "test_lmcache_salts_real",
]
result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromNames(names))
sys.exit(not result.wasSuccessful() or bool(result.skipped) or result.testsRun == 0)
