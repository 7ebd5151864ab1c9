package devlog

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/segment"
)

// nameEntries are the log entries of every namespace and purge there is.
func (l *Log) nameEntries() (out []*segment.LogWriter, err error) {
	n := l.Names
	add := func(write func(w *segment.LogWriter) error) {
		if err != nil {
			return
		}
		if len(out) == 0 || out[len(out)-1].Len() > segment.BodySize/2 {
			out = append(out, &segment.LogWriter{})
		}
		err = write(out[len(out)-1])
	}
	for ns := range n.All() {
		add(func(w *segment.LogWriter) error { return w.Namespace(ns.Entry(l.Root.Next())) })
	}
	for k, epoch := range n.DeadSalts() {
		p := segment.Purge{Seq: epoch, Covers: l.Root.Last(), Instance: k.Instance, Salted: true,
			SaltTag: segment.SaltTag(k.Tag)}
		add(func(w *segment.LogWriter) error { return w.Purge(&p) })
	}
	return out, err
}

// Again intends what the devices' logs may lack after a rebuild that went on without a
// device: every namespace and purge; and every group may have records of blocks that are gone
// whose tombstones the device had. REQUIRES: names and groups are loaded.
func (l *Log) Again(b *catalog.Batch) error {
	l.Log.Info("logging again what a rebuild could not find on all devices")
	parts, err := l.nameEntries()
	if err != nil {
		return &skep.Error{Op: "log again", Kind: skep.KindOf(err), Field: "names", Err: err}
	}
	for _, w := range parts {
		l.Intents.Add(l.Intents.Put(b, w))
	}
	l.Space.AllStale(b)
	return nil
}
