package lookup

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// Want says which of some keys had better be put.
func (l *Finder) Want(ns *namespaces.Namespace, t namespaces.Tag, wanted []skep.Key) []skep.Want {
	out := make([]skep.Want, len(wanted))
	for i, k := range wanted {
		fp := l.Names.Fingerprint(ns.Instance, t, k)
		if e, ok := l.Index.Resolve(fp); ok && ns.Info.Chained && !l.unreadableCache(ns, fp, e) {
			out[i] = skep.Want{Outcome: skep.Exists}
			continue
		}
		out[i] = skep.Want{Wanted: true}
	}
	return out
}
