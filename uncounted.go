package skep

import "context"

type uncounted struct{}

// Uncounted gives a context whose lookups are left out of Stats: of Lookups, LookupKeys, LookupHits and Reuse. It is for
// who asks for a reason of its own, such as whether a block that is to be replaced is there, and not for a reader. It
// does not go over the network: a server counts what it is asked.
func Uncounted(ctx context.Context) context.Context {
	return context.WithValue(ctx, uncounted{}, true)
}

// Counts says whether lookups of a context count.
func Counts(ctx context.Context) bool { return ctx.Value(uncounted{}) == nil }
