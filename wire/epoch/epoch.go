// Package epoch says in a call's context which map of a cluster it is by: a client to its server, and a server to its
// Store.
package epoch

import "context"

type (
	goesKey  struct{}
	cameKey  struct{}
	boundKey struct{}
)

// With has calls made with the context say that they are by the map of this epoch; 0: that the caller knows no map.
func With(ctx context.Context, e uint32) context.Context { return context.WithValue(ctx, goesKey{}, e) }

// Of is what With said; false: nothing.
func Of(ctx context.Context) (e uint32, told bool) {
	e, told = ctx.Value(goesKey{}).(uint32)
	return e, told
}

// Bound has calls made with the context go to no server but a node of a cluster.
func Bound(ctx context.Context) context.Context { return context.WithValue(ctx, boundKey{}, true) }

// IsBound is what Bound said.
func IsBound(ctx context.Context) bool { return ctx.Value(boundKey{}) != nil }

// Came has a Store hear that a call has come with the epoch of a map, 1 or more: the server has compared it when the
// request began. Calls that the Store makes for it are by no map of its.
func Came(ctx context.Context, e uint32) context.Context { return context.WithValue(ctx, cameKey{}, e) }

// By is the epoch of the map that a call at a Store is by, whether it came from elsewhere or not; 0: none is known.
func By(ctx context.Context) uint32 {
	if e, told := Of(ctx); told {
		return e
	}
	e, _ := ctx.Value(cameKey{}).(uint32)
	return e
}
