// Package twopointer decides how the KV of stored prefixes comes back fastest: which
// part of each is loaded and which is computed again. It is pure: no I/O, no clock, no
// goroutine. The embedded store, a GPU tier and a cluster can drive the same scheduler.
//
// # Two pointers
//
// Computing token n needs the KV of all tokens before it, so computing goes from the head up.
// Loading has no such need, so it comes from the tail down, and the two meet (CacheFlow, §3.1):
//
//	token      0        512       1024      1536      2048      2560
//	           |computed |computing|         |  on its |  loaded |
//	           |         |  claimed|  gap    |  way    |         |
//	                               head ──▶  ◀── tail
//
// For short prompts, whose computing is mostly a launch's fixed cost, the same is done over layers:
// the lowest layers of all tokens are computed, the highest loaded. Each stage of a pipeline does it
// by itself (a strand), from stored boundary activations.
//
// # Claims
//
// An engine schedules ahead, so it asks before it launches (Ask). What is granted
// moves head and will not be loaded; what is handed out to be loaded moves tail and will
// not be granted. Nothing is in both. A load that fails leaves an island, which a later
// claim is sent to.
//
// An engine can claim without asking, through a shared claim word (skep.ClaimWord): head, tail and how far it
// may go, in one atomic word that the engine moves head in and the caller of Step publishes the rest in
// (Standing). The caller reads the word before it asks for a piece, and again as it publishes the piece: what
// the engine took meanwhile (Taken) is off the piece.
//
// # What is decided
//
// Scheduler is a step function: an Event with its time goes in, a Decision comes out.
//
//	Join     → declined or not, by tokens or by layers (L_Δ, crossover.go)
//	Ready    → the next piece to load on a channel, of all strands, or none worth loading
//	Ask      → how far the engine may compute
//	Taken    → it computes so far, by its claim word
//	Landed, Failed, Computed, Leave, Promote, Speed → what happened
//
// Which strand is loaded next is the Policy's matter. Policy Skep minimises Σ weight × completion:
// the next piece goes where a second of loading takes most weighted seconds off the batch (worth.go). While a stage is idle at
// times, what is there will be done, and the shorter comes first:
//
//	every request advances   score = weight ÷ engine seconds left, suffix included
//	in order of arrival      score = (weight + Σ weight of those behind × share that would be computed) ÷ seconds until it is there
//
// Once 8 have left without a pause, the next is there as soon as one is through, and what counts is what is done in a second:
//
//	feeds                    = 1 + 2 · suffix's engine seconds ÷ seconds until the rest is loaded
//	every request advances   score = feeds × weight ÷ engine seconds left; computed beside other work as deep as keeps both busy
//	in order of arrival      score = feeds × Σ weight of itself and those behind
//
// # What holds
//
//   - Each token (or layer) of a strand is computed or loaded exactly once, islands
//     aside: head ≤ tail, head only grows, tail only shrinks.
//   - Nothing is loaded that computing would have reached first, as far as is known.
//   - When a channel asks and something is worth loading, it gets something; when an
//     engine with nothing else to do asks and something can be computed, it is granted.
//   - Whatever waits longer than Patience comes first, oldest first: no starvation. (Config.Patience says how long.)
//   - A deadline that can be met only by going first goes first.
//   - Bound is the least time any split can take, exactly; no schedule of one request
//     over tokens or over layers beats it.
package twopointer
