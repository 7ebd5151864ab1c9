package devlog

import (
	"cmp"
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// nameEntries are the log entries of every namespace and purge there is, and after them, in appends of their own, of
// the keys that things of namespaces are encrypted with.
func (l *Log) nameEntries(ctx context.Context) (out []*segment.LogWriter, err error) {
	n := l.Names
	names := 0 // writers of what is no sealing
	add := func(write func(w *segment.LogWriter) error) {
		if err != nil {
			return
		}
		if len(out) == names || out[len(out)-1].Len() > segment.BodySize/2 {
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
	names = len(out)
	keys, e := l.Catalog.Sealings(ctx)
	for _, k := range keys {
		if n.Of(k.Instance) != nil {
			add(func(w *segment.LogWriter) error { return w.Sealing(&segment.Sealing{Instance: k.Instance, Key: k.Key}) })
		}
	}
	return out, cmp.Or(err, e)
}

// Forgo has the logs of those drives of g that cannot be asked needed no more: what they said of names and deletions
// the catalog says, and is intended again; blocks that are gone are found by comparing all groups with it. False: there
// is no such drive whose logs are needed still.
func (l *Log) Forgo(ctx context.Context, g *space.Group) (bool, error) {
	var list []*space.Drive
	for _, d := range g.Drives {
		if !d.Resaid.Load() && (d.Away() || d.Retired.Load()) {
			list = append(list, d)
		}
	}
	if len(list) == 0 {
		return false, nil
	}
	parts, err := l.nameEntries(ctx)
	if err != nil {
		return false, &skep.Error{Op: "log again", Kind: skep.KindOf(err), Field: "names", Err: err}
	}
	b := l.Catalog.NewBatch()
	var names []catalog.Intent
	for _, w := range parts {
		names = append(names, l.Intents.Put(b, w))
	}
	l.Space.AllSuspect(b)
	if err := l.Root.Save(ctx, l.Catalog, b, true); err != nil {
		return false, err
	}
	l.Intents.Add(names...)
	for _, d := range list {
		d.Resaid.Store(true)
		l.Log.Warn("log of a drive that cannot be read: what it said is written again elsewhere", "drive", d.Path,
			"group", g.Num)
	}
	return true, nil
}

// Again intends what the devices' logs may lack after a rebuild that went on without a
// device: every namespace, purge and key in use; and every group may have records of blocks that are gone
// whose tombstones the device had. REQUIRES: names and groups are loaded.
func (l *Log) Again(b *catalog.Batch) error {
	l.Log.Info("logging again what a rebuild could not find on all devices")
	parts, err := l.nameEntries(l.Context)
	if err != nil {
		return &skep.Error{Op: "log again", Kind: skep.KindOf(err), Field: "names", Err: err}
	}
	for _, w := range parts {
		l.Intents.Add(l.Intents.Put(b, w))
	}
	l.Space.AllStale(b)
	return nil
}
