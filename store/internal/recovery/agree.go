package recovery

import (
	"context"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/devlog"
)

// Agree has the devices say what the catalog says: what the last run did not get to, after a clean end or not; with
// again also what a rebuild could not find on all devices. True: the caller commits b with the root row.
func (ld *Loader) Agree(ctx context.Context, b *catalog.Batch, logs *devlog.Log, clean, again bool) (bool, error) {
	if err := logs.Intents.Load(ctx, ld.Catalog); err != nil {
		return false, err
	}
	ld.Space.MendHeaders(ctx, ld.wasOpen)
	if clean && !again && len(ld.leftFree) == 0 {
		return false, nil
	}
	ld.Space.FreeLeftovers(ctx, b, ld.leftFree)
	list, err := logs.Reconcile(ctx, b, ld.Space.TakeSuspects())
	if err != nil {
		return false, err
	}
	logs.Intents.Add(list...)
	if again {
		if err := logs.Again(b); err != nil {
			return false, err
		}
	}
	return true, nil
}
