// Package recall says in a call's context that a deletion is a node's own: of copies that the node sent and that
// somebody deletes. Such a one waits for no other of its kind, which may be waiting for it.
package recall

import (
	"context"

	"github.com/skepkv/skep/wire/frames"
)

type key struct{}

// Mark has the deletions made with the context be recalls.
func Mark(ctx context.Context) context.Context { return context.WithValue(ctx, key{}, true) }

// Is says whether they are.
func Is(ctx context.Context) bool { return ctx.Value(key{}) != nil }

// Flags is what the header of a frame of a type says of it, where both sides know so much.
func Flags(ctx context.Context, t frames.Type, features uint32) uint16 {
	if features&frames.FeatureRecall != 0 && (t == frames.TypeDelete || t == frames.TypeDeleteNamespace) && Is(ctx) {
		return frames.FlagRecall
	}
	return 0
}

// Came is the context of a request whose header says this.
func Came(ctx context.Context, features uint32, flags uint16) context.Context {
	if features&frames.FeatureRecall != 0 && flags&frames.FlagRecall != 0 {
		return Mark(ctx)
	}
	return ctx
}
