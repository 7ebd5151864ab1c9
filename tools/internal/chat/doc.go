// Package chat generates a chat workload: prompts of multi-turn
// conversations, as Mooncake's trace records them. It stands in for recorded
// traces (package trace reads both) where these are not at hand, and makes
// workloads of any length and with any share of repeated prefixes.
//
// Sessions arrive at random (Poisson). Each begins with one of a few system
// prompts, chosen by Zipf's law; each turn appends a prompt and, once answered,
// the answer, both of log-normal length; between an answer and the next prompt
// the user thinks, log-normally long. The number of turns is geometric, cut by
// the context window. The server sees requests in batches, as if a gateway
// collected them for 3 s: a request's time is rounded up to the next batch.
//
// Invariants, the same that hold for the published trace:
//
//   - An id names a prefix: equal ids have equal ids before them, and no id
//     occurs twice in a request.
//   - Ids are shared by full blocks only: of a system prompt between sessions,
//     of a conversation between its turns. A partly filled last block is new in
//     every request, since the next turn fills it with something else.
//   - len(Blocks) is InputTokens ÷ BlockTokens, rounded up.
//   - Equal Params give equal bytes (on one processor architecture: the last
//     bit of math.Exp may differ between two).
//
// The defaults come close to the published conversation trace, in brackets:
//
//	requests               10,000  (12,031)
//	span, s                 2,976  (3,537)
//	block references      268,997  (288,500)
//	unique blocks         165,345  (182,790)
//	infinite-cache hit     0.3853  (0.3664)
//	input p50               6,701  (6,909)
//	input p90              33,231  (27,367)
//	input p99              97,801  (85,401)
//	output p50                319  (350)
//	output p90                609  (597)
//	output p99              1,017  (1,120)
//	partial tails, share   0.9959  (0.9982)
//	largest batch              20  (28)
//
// A test holds the generator to this table.
package chat
