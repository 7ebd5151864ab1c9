package skep

import "context"

type countsIn struct{}

// What the lookups of a context count in, beyond everything.
const (
	inReuse = iota + 1
	inNothing
)

// Uncounted gives a context whose lookups are left out of Stats: of Lookups, LookupKeys, LookupHits and Reuse. It is for
// who asks for a reason of its own, such as whether a block that is to be replaced is there, and not for a reader. A
// server is told; one of a version that does not know it counts what it is asked.
func Uncounted(ctx context.Context) context.Context {
	return context.WithValue(ctx, countsIn{}, inNothing)
}

// Continued is Uncounted but for Reuse, for lookups of the rest of what one that counted has found the beginning of,
// such as the pieces of a value. What is uncounted stays so.
func Continued(ctx context.Context) context.Context {
	if !Counts(ctx) {
		return ctx
	}
	return context.WithValue(ctx, countsIn{}, inReuse)
}

// Counts says whether lookups of a context count.
func Counts(ctx context.Context) bool { return ctx.Value(countsIn{}) == nil }

// Reuses says whether Reuse sees them.
func Reuses(ctx context.Context) bool { return ctx.Value(countsIn{}) != inNothing }
