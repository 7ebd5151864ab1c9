// Package coact finds out which KV entries attention activates together, and turns that
// into clusters, into a choice of clusters for a query, and into a choice of what to keep
// in memory. It is pure: no I/O, no clock; randomness comes from seeds.
//
// # The story
//
// An entry is the KV of one token at one layer. A step (one decoded token) activates
// some of a context's entries, a tenth of them, say. Which ones go together repeats from
// question to question, so it can be learned:
//
//	Profile   steps of each entry, as bitmaps, from what the engine reports
//	Bits      the same as a matrix, entries × steps, what the arithmetic works on
//	Exact     Algorithm 1 of the paper, pair by pair: the slow reference
//	Build     the same result from per-step counts and sampled densities
//	Compact   clusters of bounded size and bounded copies, in an order in which neighbours
//	          are activated together: what the store lays out
//	ChooseTau the radius that serves steps it was not built from best
//	ByKeys    clusters of similar keys, for a context without a profile
//	Index     scores clusters against query vectors (Select)
//	Recall    foresees what a query activates from what similar queries did, without clusters
//	Heat      which clusters stay in DRAM (eq. 6), and an LRU to compare with
//	Joiner    which cluster an appended entry joins
//
// # Distance
//
// f_i is the number of steps in which entry i is activated, f_ij of those with both. The
// distance is 1 - f_ij/√(f_i·f_j): 0 for entries always together, 1 for never. (The paper
// divides by a row sum, eq. 2, whose two readings make all distances nearly 1; they and
// two more are kept as Measures, to compare with.)
//
// The mean distance of an entry c to a cluster C needs no pairs. With the weight of a
// step w_t = Σ 1/√f_k over the members k active in t,
//
//	mean d(c, C) = 1 - Σ w_t over the steps t of c ÷ (|C|·√f_c)
//
// which is O(steps) whatever the size of C.
//
// # Invariants
//
//   - Every entry is in at least one cluster; a cluster's first entry is its medoid; no
//     cluster names an entry twice.
//   - The same profile, options and seed give the same clusters, on any number of cores.
//   - With as many references as entries, Build gives exactly what Exact gives.
//   - An entry that was never activated is a cluster of its own in Exact and Build, and
//     lies with its neighbours in the text in Compact.
//   - A Profile merges, and survives being written and read, without losing a step.
package coact
