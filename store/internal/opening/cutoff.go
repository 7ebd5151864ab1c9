package opening

import (
	"context"
	"errors"
	"os"

	"github.com/skepkv/skep/store/internal/making"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
)

// The making of a store may have been cut off. What is left of it is removed: files that its list names, and the
// superblocks of block devices that hold nothing else.

// makingList is the list of the device files that a store is made with; nil for devices of the caller's own.
func (p *Opening) makingList() *making.List {
	if p.Own {
		return nil
	}
	return making.New(p.Dir, p.RemoveList)
}

// clearList takes away the list of a store that is there: it says nothing about it.
func (p *Opening) clearList() {
	if err := p.makingList().End(); err != nil {
		p.Log.Warn("left behind: it says nothing about the store; remove it", "path", p.makingList().Path(), "error", err)
	}
}

// undoMaking removes what a making that was cut off has made. It says whether one was.
func (p *Opening) undoMaking(ctx context.Context) (bool, error) {
	l := p.makingList()
	if there, err := l.There(); err != nil || !there {
		return false, err
	}
	paths, err := p.devicePaths()
	if err != nil {
		return false, err
	}
	return l.Undo(ctx, paths, p.Log)
}

// unused says whether the drives are block devices of a store whose making was cut off: their
// superblocks are as it wrote them, and no segment was ever opened.
func (p *Opening) unused(ctx context.Context) (bool, error) {
	for _, d := range p.Members.Opened {
		if st, err := os.Stat(d.Path); err != nil || st.Mode().IsRegular() || d.Sequence > 1 {
			return false, nil
		}
		if !p.holdsNothing(ctx, d) {
			return false, nil
		}
	}
	return true, nil
}

// vacateSome is vacate where the making of a store was cut off before all of its block devices had their superblocks:
// of those at paths, as many as it was to have, some hold nothing but these, and all others are blank. False: it is
// not so, and nothing was changed.
func (p *Opening) vacateSome(ctx context.Context, paths []string) (bool, error) {
	defer p.forgetLoaded()
	blank := 0
	for i, path := range paths {
		sb, err := p.meet(ctx, i, &space.Drive{Path: path})
		switch {
		case err == nil && sb.DeviceCount == len(paths):
		case err != nil && p.isBlank(ctx, i, path):
			blank++
		default:
			return false, nil
		}
	}
	if blank == 0 || len(p.Members.Opened) == 0 {
		return false, nil
	}
	if empty, err := p.unused(ctx); !empty || err != nil {
		return false, err
	}
	return true, p.vacate(ctx)
}

// isBlank says whether a new store takes the block device at path.
func (p *Opening) isBlank(ctx context.Context, i int, path string) bool {
	dev, err := p.OpenDevice(i, path, false, 0)
	if err != nil {
		return false
	}
	defer dev.Close()
	return segio.CheckBlank(ctx, dev, path) == nil
}

// vacate takes the superblocks off drives of a store whose making was cut off, and closes them.
func (p *Opening) vacate(ctx context.Context) error {
	var errs []error
	for _, d := range p.Members.Opened {
		errs = append(errs, segio.Wipe(ctx, p.Space.Durably(d)), d.Dev.Close())
	}
	p.Log.Warn("the making of a store was cut off here: its devices are used anew", "devices", len(p.Members.Opened))
	p.Members.Opened = nil
	return errors.Join(errs...)
}
