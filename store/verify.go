package store

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/verify"
	"github.com/skepkv/skep/store/segment"
)

// VerifyOptions say how thoroughly.
type VerifyOptions struct {
	Deep     bool  // read payload, too
	Rate     int64 // of that, bytes a second; 0: as fast as it goes
	Progress func(stage string)
}

// Verify looks at the store in o.Dir. What is wrong with the store is in the report; an
// error says that it could not be looked at: Locked, NotFound, Deadline.
func Verify(ctx context.Context, o Options, v VerifyOptions) (rep VerifyReport, err error) {
	start := time.Now()
	if err := o.prepare(); err != nil {
		return rep, err
	}
	if v.Progress == nil {
		v.Progress = func(string) {}
	}
	if _, err := os.Stat(o.Dir); err != nil {
		return rep, &skep.Error{Op: "verify", Kind: skep.NotFound, Field: "dir", Value: o.Dir,
			Limit: "the directory of a store"}
	}
	lock, err := dirlock.Take(o.Dir, true)
	if err != nil {
		return rep, err
	}
	lock.Remove = lock.Made
	defer func() { err = errors.Join(err, lock.Release()) }()
	o.ReadOnly = true
	rep = VerifyReport{Faults: []Fault{}, Deep: v.Deep}
	v.Progress("opening")
	s := newStore(o)
	s.opening.Exclusive = true
	if err := s.open(ctx); err != nil {
		s.discardOpen()
		if ctx.Err() != nil {
			return rep, err
		}
		rep.Fault(openFault(err))
		rep.Seconds = time.Since(start).Seconds()
		return rep, nil
	}
	s.run()
	err = verify.Run(ctx, verify.Input{Names: s.names, Catalog: s.catalog, Index: s.index, Space: s.space,
		Sidecars: s.sidecars,
		Scrubber: s.mends, Store: s.opening.ID, Host: verified{s, v.Rate}, Deep: v.Deep, Progress: v.Progress, Report: &rep})
	err = errors.Join(err, s.Close())
	rep.Sound = err == nil && len(rep.Faults) == 0
	rep.Seconds = time.Since(start).Seconds()
	return rep, err
}

// openFault says what keeps a store from opening, and what to do.
func openFault(err error) Fault {
	f := Fault{What: "store", Problem: err.Error(), Do: "see what it names"}
	switch k := skep.KindOf(err); {
	case damagedCatalog(err):
		f.What, f.Do = "catalog", "skep rebuild makes it anew from the devices"
	case k == skep.NotFound:
		f.What, f.Do = "catalog", "skep rebuild makes it anew from the devices, if they hold a store"
	case k == skep.Missing:
		f.What, f.Do = "device", "bring it back, or name where it is now"
	case k == skep.Foreign:
		f.What, f.Do = "device", "name the store's own devices"
	case k == skep.Version:
		f.Do = "use the skep that wrote it, or make the store anew"
	}
	return f
}

// verified is a store as its verification sees it: verify.Host.
type verified struct {
	s    *Store
	rate int64 // of reading payload, bytes a second
}

func (h verified) Scrub(ctx context.Context, logsOnly bool) (ScrubReport, error) {
	o := scrub.Options{DryRun: true, LogsOnly: logsOnly}
	if !logsOnly {
		o.Rate = h.rate
	}
	return h.s.mends.Scrub(ctx, o)
}

func (h verified) Record(key skep.Key, fp index.Fingerprint) (segment.Record, error) {
	return h.s.rows.OnDrives("verify", key, fp)
}

func (h verified) Rebuild(ctx context.Context) (*verify.Rebuilt, error) {
	dir, err := os.MkdirTemp("", "skep-verify-")
	if err != nil {
		return nil, err
	}
	o := h.s.options
	o.CatalogFS, o.CatalogDir, o.Registerer = vfs.Default, dir, nil
	o.Devices = nil
	for _, d := range h.s.members.Opened {
		if !d.Removed.Load() {
			o.Devices = append(o.Devices, d.Path)
		}
	}
	r := newStore(o)
	out := &verify.Rebuilt{Close: func() error { return errors.Join(r.abandon(), os.RemoveAll(dir)) }}
	if out.Err = r.opening.Drives(ctx); out.Err != nil {
		return out, nil
	}
	found, err := r.opening.RebuildInto(ctx, dir, true, nil)
	r.catalog = r.opening.Catalog
	out.Err, out.Faults = err, found.Faults
	out.Rows = func(ctx context.Context, visit func(layout.Location, []byte) error) error {
		return r.catalog.ScanBlocks(ctx, 1, func(_ int, l layout.Location, row []byte) error { return visit(l, row) })
	}
	return out, nil
}
