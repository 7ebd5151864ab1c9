package lookup

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// Hint hands a hint to the index, block by block, and to prefetches. It says how many of the blocks there are.
func (l *Finder) Hint(ns *namespaces.Namespace, t namespaces.Tag, sc skep.Scope, keys []skep.Key, h skep.Hint) (
	int, error,
) {
	fps := make([]index.Fingerprint, len(keys))
	for i, k := range keys {
		fps[i] = l.Names.Fingerprint(ns.Instance, t, k)
	}
	n, err := l.applyHint(ns, fps, h)
	if err == nil && n > 0 {
		l.Restores.Hint(ns, t, sc, keys, h)
	}
	return n, err
}

// applyHint hands a hint to the index, block by block.
func (l *Finder) applyHint(ns *namespaces.Namespace, fps []index.Fingerprint, h skep.Hint) (int, error) {
	now := l.Clock()
	n := 0
	l.Programs.Hinted(h.Program, fps)
	for _, fp := range fps {
		if _, ok := l.Index.Resolve(fp); ok {
			n++
		}
	}
	row := index.Hint{Drop: h.Drop}
	if h.NextUse > 0 {
		row.NextUse = now.Add(h.NextUse)
	}
	if h.TTL > 0 {
		row.Until = now.Add(h.TTL)
	}
	if h.Steps > 0 {
		row.Steps = uint16(min(h.Steps, 1<<16-1))
		if row.Until.IsZero() {
			row.Until = now.Add(stepsLife)
		}
	}
	if h.Drop {
		l.Pins.Lift(fps)
	}
	for _, fp := range fps {
		if row == (index.Hint{}) {
			break
		}
		if err := l.Index.SetHint(now, fp, row); err != nil && skep.KindOf(err) != skep.NotFound {
			return n, err
		}
	}
	if h.Pin > 0 { // last: where there is an error, nothing is pinned
		bytes := func(fp index.Fingerprint, e index.Entry) int64 { return l.PayloadOf(ns, fp, e) }
		if err := l.Pins.Pin(ns.Tenant, fps, now, now.Add(h.Pin), bytes); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// stepsLife is how long steps to execution are believed without a time to live.
const stepsLife = 10 * time.Minute
