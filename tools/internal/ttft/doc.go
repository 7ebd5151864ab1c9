// Package ttft measures how soon requests have their first token under different ways of
// restoring their stored prefixes: skep bench ttft.
//
// The prompts are those of recorded traces (Load). Their prefixes are really stored, in a store
// on devices of a stated speed, and really restored (Real); bytes a token and bandwidth are
// divided by one factor, so that a model's KV fits a small machine and times stay as they
// would be. Or nothing is stored and time is virtual (Virtual), which says so. Either way the
// engine is emulated (package engine): nothing is computed.
//
// For each point of the grid and each policy there is a Row. What is attainable is reckoned from
// the emulated engine's own speeds, which no policy knows: Row.Bound.
//
// Invariants: all policies see the same requests, arrivals and seeds; a request without
// stored tokens counts for TTFT and for no restore; every figure is of one run and the rows say
// how many requests it had.
package ttft
