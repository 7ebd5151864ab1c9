package clean

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/space"
)

// cleaning is a group that somebody wants cleaned.
type cleaning struct {
	g       *space.Group
	keepAll bool
	done    chan error
}

// Clean has the cleaner clean a group, needed or not. With keepAll nothing is dropped: where a drive is away that alone
// has some of it, the group stays as it is, and the error is DeviceFailed.
func (c *Cleaner) Clean(ctx context.Context, g *space.Group, keepAll bool) error {
	w := &cleaning{g, keepAll, make(chan error, 1)}
	c.asked.mu.Lock()
	c.asked.list = append(c.asked.list, w)
	c.asked.mu.Unlock()
	c.Space.Kick()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return &skep.Error{Op: "clean group", Kind: skep.Deadline, Err: ctx.Err()}
	case <-c.Closing:
		return &skep.Error{Op: "store", Kind: skep.Closed}
	}
}

// answer cleans what was asked for. The cleaner's goroutine only.
func (c *Cleaner) answer() {
	c.asked.mu.Lock()
	list := c.asked.list
	c.asked.list = nil
	c.asked.mu.Unlock()
	for _, w := range list {
		w.done <- c.cleanAsked(c.Context, w.g, w.keepAll)
	}
}

// cleanAsked cleans a group, needed or not, on the caller's goroutine. ErrBusy: somebody has it.
func (c *Cleaner) cleanAsked(ctx context.Context, g *space.Group, keepAll bool) error {
	if !c.Space.Has(g) {
		return nil // it is gone already
	}
	if !c.Space.Claim(g, space.Claim{By: space.Cleaner, KeepAll: keepAll, Asked: true}) {
		return space.ErrBusy
	}
	err := c.EmptyGroup(ctx, g)
	if err != nil {
		c.Space.Release(g)
	}
	c.Space.Regain()
	return err
}
