package devlog

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// Delete deletes blocks from the catalog, in small commits, and has the devices' logs say so. It says how many there
// were.
func (l *Log) Delete(ctx context.Context, ns *namespaces.Namespace, t namespaces.Tag, keys []skep.Key) (int, error) {
	var err error
	n := 0
	for len(keys) > 0 && err == nil {
		step := keys[:min(len(keys), deleteStep)]
		keys = keys[len(step):]
		var d commit.Deleted
		if d, err = l.Rows.Delete(ctx, ns, t, step); err != nil {
			break
		}
		n += d.Blocks
		l.CarryOut(ctx, d.Intents...)
		for _, fp := range d.Away { // their commits find that they are gone and take their rows back
			if err == nil {
				err = l.Puts.Flights.Wait(ctx, fp)
			}
		}
	}
	if err == nil {
		err = l.Rows.Settle(ctx)
	}
	return n, err
}

// deleteStep is how many keys are deleted in one commit: others that change rows wait for it.
const deleteStep = 1024
