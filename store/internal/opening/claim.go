package opening

import (
	"context"

	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/health"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// locate says where a drive is now.
func (p *Opening) locate(r catalog.DeviceState) (string, error) {
	if p.Own {
		return r.Path, nil
	}
	return p.Places.Find(r)
}

// Claim adds to b whose the devices are, where the catalog does not say so yet. The devices
// themselves are told afterwards, by Stamp. REQUIRES: p.Members.Opened are all.
func (p *Opening) Claim(b *catalog.Batch) error {
	if p.Own {
		return nil
	}
	if p.Places == nil { // there was no catalog
		p.Places = places.Of(p.Dir, p.ID, catalog.Owner{}, false)
	}
	devices := make([]places.Device, len(p.Members.Opened))
	for i, d := range p.Members.Opened {
		devices[i] = places.Device{ID: d.ID, Path: d.Path, Removed: d.Removed.Load(), Absent: d.Absent != nil}
	}
	c, err := p.Places.Own(devices)
	if err != nil || c.Row == nil {
		return err
	}
	if c.Was != "" {
		p.Log.Warn("the store's directory is not where it was when last opened",
			"was", c.Was, "now", c.Row.Path, "copy", c.Copy)
	}
	b.PutOwner(c.Row)
	return nil
}

// Stamp writes on devices outside the directory whose they are, once the catalog says so. What
// cannot be written is written at a later open: until then both names count. The directory is told of the catalog, too.
func (p *Opening) Stamp(ctx context.Context, drives ...*space.Drive) {
	p.remember()
	if p.NoStamp || p.Own {
		return
	}
	changed := false
	for _, d := range drives {
		o, ok := p.Places.Stamp(d.ID)
		if !ok || d.Absent != nil || d.Condition() >= health.Fenced {
			continue
		}
		within, cancel := context.WithTimeout(ctx, p.Timeout)
		err := segio.WriteOwner(within, p.Space.Durably(d), &o)
		cancel()
		if err != nil {
			p.Log.Warn("device does not say whose it is yet; it is written again", "device", d.Path, "error", err)
			continue
		}
		p.Places.Stamped(d.ID)
		changed = true
	}
	if changed {
		b := p.Catalog.NewBatch()
		b.PutOwner(p.Places.Row())
		if err := p.Catalog.Commit(ctx, b, false); err != nil {
			p.Log.Warn("whose the devices are is noted again at the next open", "error", err)
		}
	}
}

// claimAdded is Claim for a drive that is added to a store in use; disclaim is for who could not commit b. REQUIRES:
// the turn of Members.
func (p *Opening) claimAdded(b *catalog.Batch, d *space.Drive) (disclaim func()) {
	if p.Own || p.Places == nil {
		return func() {}
	}
	row := p.Places.Add(d.ID, d.Path)
	if row == nil {
		return func() {}
	}
	b.PutOwner(row)
	return func() { p.Places.Forget(d.ID) }
}
