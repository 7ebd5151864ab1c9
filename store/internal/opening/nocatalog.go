package opening

import (
	"context"
	"errors"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/rebuild"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/report"
)

// What an open finds where there is no catalog: nothing, what is left of the making of a store that was cut off
// (cutoff.go), or a store that has lost its catalog.

// rebuildIfLost finds out why there is no catalog. Where the drives hold a store it has lost its catalog, which is made
// anew from them: rebuilt. What was left of a making that was cut off is removed; else, too, a store is to be made.
func (p *Opening) rebuildIfLost(ctx context.Context) (rebuilt bool, err error) {
	if p.Own {
		return false, nil
	}
	cut, err := p.undoMaking(ctx)
	if err != nil {
		return false, &skep.Error{Op: "open store", Kind: skep.Other, Field: "what was left of its making",
			Value: p.makingList().Path(), Err: err}
	}
	paths, err := p.allDevicePaths(ctx)
	if err != nil {
		return false, err
	}
	ours := 0
	for _, p := range paths {
		if _, err := segio.PeekSuperblock(p); err == nil || skep.KindOf(err) == skep.Version {
			ours++
		}
	}
	if ours == 0 {
		return false, p.wasHere() // whether what is there is in the way, create says
	}
	if p.NoRebuild {
		return false, &skep.Error{Op: "open store", Kind: skep.Missing, Field: "catalog", Value: p.CatalogDir,
			Limit: "present: the devices hold a store; bring it back, or have it rebuilt from them"}
	}
	if cut {
		if vacated, err := p.vacateSome(ctx, paths); vacated || err != nil {
			return false, err
		}
	}
	if err := p.Drives(ctx); err != nil {
		return false, err
	}
	if cut {
		if empty, err := p.unused(ctx); empty || err != nil {
			return false, errors.Join(err, p.vacate(ctx))
		}
	}
	p.Log.Error("the catalog is lost; rebuilding it from the devices", "catalog", p.CatalogDir,
		"devices", len(p.Members.Opened))
	rep, err := rebuild.Run(ctx, p.Input(func(now report.RebuildProgress) {
		p.Log.Info("rebuilding the catalog", "stage", now.Stage, "done", now.Done, "of", now.Of, "records", now.Records)
	}))
	if err != nil {
		return false, err
	}
	p.Log.Warn("the catalog is rebuilt", "blocks", rep.Blocks, "lost", rep.Lost, "faults", len(rep.Faults))
	for _, f := range rep.Faults {
		p.Log.Warn("found while rebuilding", "fault", f.String())
	}
	p.forgetLoaded()
	return true, nil
}

// forgetLoaded closes what a rebuild used, so that the open that follows begins anew.
func (p *Opening) forgetLoaded() {
	for _, d := range p.Members.Opened {
		_ = d.Dev.Close()
	}
	p.Members.Opened = nil
	p.Space.Reset()
	p.Root.Reset()
}
