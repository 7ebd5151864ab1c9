package opening

import (
	"context"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/rebuild"
	"github.com/skepkv/skep/store/internal/recovery"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
)

// Rebuild makes a new catalog from the devices alone. With dryRun nothing is changed.
func (p *Opening) Rebuild(ctx context.Context, dryRun bool,
	progress func(report.RebuildProgress)) (report.Rebuild, error) {
	if _, err := os.Stat(p.Dir); err != nil {
		return report.Rebuild{}, &skep.Error{Op: "rebuild", Kind: skep.NotFound, Field: "dir", Value: p.Dir,
			Limit: "the directory of a store"}
	}
	lock, err := dirlock.Take(p.Dir, dryRun)
	if err != nil {
		return report.Rebuild{}, err
	}
	p.Lock, lock.Remove = lock, lock.Made // nothing is left where no store is, nor by a dry run
	if err := p.Drives(ctx); err != nil {
		return report.Rebuild{}, err
	}
	lock.Remove = lock.Made && dryRun
	dir := p.CatalogDir
	if err := p.place("rebuild").OtherFormat(); err != nil {
		return report.Rebuild{}, err
	}
	if dryRun { // nothing is written where the store is: it may be a snapshot, or a disk that has no room
		if err := p.place("rebuild").Check(); err != nil {
			return report.Rebuild{}, err
		}
		if dir, err = os.MkdirTemp("", "skep-dry-run-"); err != nil {
			return report.Rebuild{}, &skep.Error{Op: "rebuild", Kind: skep.Other, Field: "directory for temporary files",
				Value: os.TempDir(), Limit: "one that can be written to; set TMPDIR", Err: err}
		}
		defer os.RemoveAll(dir)
	} else if err := p.setAside("rebuild"); err != nil {
		return report.Rebuild{}, err
	}
	rep, err := p.RebuildInto(ctx, dir, dryRun, progress)
	if err == nil && !dryRun {
		p.clearList()
		p.remember()
	}
	return rep, err
}

// RebuildInto makes a catalog in dir, where none is. With dryRun nothing is written to the
// drives. REQUIRES: p.Members.Opened.
func (p *Opening) RebuildInto(ctx context.Context, dir string, dryRun bool,
	progress func(report.RebuildProgress)) (rep report.Rebuild, err error) {
	start := time.Now()
	opt := catalog.Options{FS: p.Options.FS, CacheBytes: p.Options.CacheBytes, Logger: p.Options.Logger,
		OnFailure: p.Options.OnFailure}
	if dryRun {
		opt.FS = vfs.Default
	} else if err := p.Room.Make(); err != nil {
		return rep, err
	}
	if p.Catalog, err = catalog.Open(dir, opt); err != nil {
		if !dryRun {
			err = p.Room.Explain(err)
		}
		return rep, err
	}
	p.Space.Catalog = p.Catalog
	in := p.Input(progress)
	in.DryRun = dryRun
	rep, err = rebuild.Run(ctx, in)
	rep.Seconds = time.Since(start).Seconds()
	if err == nil {
		p.Log.Warn("catalog rebuilt from the devices", "blocks", rep.Blocks, "groups", rep.Groups,
			"namespaces", rep.Namespaces, "lost", rep.Lost, "faults", len(rep.Faults), "seconds", rep.Seconds)
	}
	return rep, err
}

// Input is what a rebuild into p.Catalog goes by. REQUIRES: p.Members.Opened.
func (p *Opening) Input(progress func(report.RebuildProgress)) rebuild.Input {
	p.names = namespaces.NewTable(p.Secret)
	in := rebuild.Input{Store: rebuilding{p}, Catalog: p.Catalog, Names: p.names, ID: p.ID, Secret: p.Secret,
		SegmentBytes: p.Space.SegmentBytes, Limits: p.Limits, Partial: p.Whatever, Missing: p.missing,
		GivenUp: p.before, Timeout: p.Timeout,
		Wall: p.Wall, Log: p.Log, Progress: progress}
	for _, d := range p.Members.Opened {
		in.Drives = append(in.Drives, driveFound(d))
	}
	for _, l := range p.left {
		if skep.KindOf(l.why) == skep.Missing { // it is counted where it should be there
			continue
		}
		in.Left = append(in.Left, report.Fault{Device: l.path, What: "device", Problem: l.why.Error(),
			Do: "see whether it is to be the store's: it was not read; take it away if not"})
	}
	return in
}

// driveFound is the drive as a rebuild sees it.
func driveFound(d *space.Drive) *rebuild.Drive {
	out := &rebuild.Drive{IO: d.IO(), Path: d.Path, Segments: d.Segments, Absent: d.Absent != nil, Away: d.Away,
		Row: d.Row()}
	if d.Removed.Load() {
		out.Row.State = catalog.DeviceRemoved
	}
	return out
}

// rebuilding is the store whose catalog a rebuild makes: rebuild.Store.
type rebuilding struct{ p *Opening }

func (r rebuilding) GiveUp(i int) *rebuild.Drive {
	d := r.p.givenUp(i)
	r.p.Members.Opened = append(r.p.Members.Opened, d)
	return driveFound(d)
}

func (r rebuilding) Found(groups []*catalog.GroupState) {
	for _, st := range groups {
		r.p.Space.Add(r.groupOf(st))
	}
}

func (r rebuilding) groupOf(st *catalog.GroupState) *space.Group {
	g := space.Found(*st)
	for _, m := range st.Devices {
		g.Drives = append(g.Drives, r.p.Members.Opened[m.Device])
		g.Segments = append(g.Segments, m.Segment)
	}
	return g
}

func (r rebuilding) Whole(ctx context.Context, at layout.Location, row []byte, buf *[]byte) (bool, error) {
	_, ok, err := recovery.VerifyRow(ctx, r.p.names, r.p.Space, at, row, buf)
	return ok, err
}

func (r rebuilding) WriteHeader(ctx context.Context, st *catalog.GroupState, i int) error {
	g := r.groupOf(st)
	h := r.p.Space.HeaderOf(g, i)
	return r.p.Space.WriteHeader(ctx, g.Drives[i], &h)
}

func (r rebuilding) Claim(b *catalog.Batch) error { return r.p.Claim(b) }
